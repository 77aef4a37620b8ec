"""A run that is stopped goes on where it was, and ends with the same weights; a state is never taken for another's."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import famr
from conftest import SMALL_VIT
from famr.data import Data
from famr.data.augmentation import Augmentation
from famr.errors import CheckpointError, FamrError, RequestError
from famr.runs.resume import ResumeState
from famr.training import TrainingRow
from famr.unlearn.history import HistoryRow

QUICK = famr.FAMR(strength=100.0, epochs=3, function_images=2, fisher_images=20, batch_size=64)
METHODS = {
    "natural": QUICK,
    "adam": replace(QUICK, optimiser="adam", anchor="l2", strength=0.1, target="uniform"),
    "paper": replace(famr.FAMR.paper(), epochs=3, learning_rate=1e-3),
}


class PlugPulledError(Exception):
    """Somebody pulled the plug."""


def weights(model: famr.Classifier) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.module.parameters()])


def stop_after(epoch: int):  # type: ignore[no-untyped-def]
    def on_event(event: object) -> None:
        if isinstance(event, HistoryRow | TrainingRow) and event.epoch == epoch + 1:
            raise PlugPulledError

    return on_event


@pytest.mark.parametrize("name", list(METHODS))
@pytest.mark.parametrize("epoch", [1, 2])
def test_forgetting_goes_on_to_the_same_weights(
    original: famr.Classifier, without_three: famr.Splits, tmp_path: Path, name: str, epoch: int
) -> None:
    def run(resume_state: ResumeState | None = None, on_event=None) -> famr.Unlearned:  # type: ignore[no-untyped-def]
        return famr.forget(
            original,
            without_three,
            METHODS[name],
            device="cpu",
            monitor=famr.Monitor(track_retain=False, resume_state=resume_state, on_event=on_event),
        )

    whole = run()
    place = ResumeState(tmp_path / "run.unfinished", every=0.0)
    with pytest.raises(PlugPulledError):
        run(place, stop_after(epoch))
    seen: list[int] = []
    again = run(ResumeState(place.folder, every=0.0), lambda event: seen.append(event.epoch))
    assert torch.equal(weights(again.model), weights(whole.model))
    assert min(seen) == epoch + 1  # what was behind us was not done again
    assert whole.seconds_of_all is not None
    assert again.seconds_of_all is None  # nobody knows what the first part took
    keys = ("epoch", "step", "loss_total", "drift", "forget_entropy")
    for ours, theirs in zip(again.history, whole.history, strict=True):
        assert [getattr(ours, key) for key in keys] == [getattr(theirs, key) for key in keys]


def test_trials_of_a_strength_are_not_made_again(
    original: famr.Classifier, without_three: famr.Splits, tmp_path: Path
) -> None:
    """The first strength is far too firm to forget with, so that a second one is tried; it is stopped in that."""
    method = replace(QUICK, strength="auto", function_strength=10_000.0, epochs=8, budget=0.9)
    runs: list[int] = []

    def stop_in_the_second(event: object) -> None:
        if isinstance(event, HistoryRow) and event.epoch == 2:
            runs.append(2)
            if len(runs) == 2:
                raise PlugPulledError

    quiet = famr.Monitor(track_retain=False)
    whole = famr.forget(original, without_three, method, device="cpu", monitor=quiet)
    assert len(whole.trials) > 1
    place = ResumeState(tmp_path / "u", every=0.0)
    stopping = replace(quiet, resume_state=place, on_event=stop_in_the_second)
    with pytest.raises(PlugPulledError):
        famr.forget(original, without_three, method, device="cpu", monitor=stopping)
    events: list[object] = []
    resuming = replace(quiet, resume_state=place, on_event=events.append)
    again = famr.forget(original, without_three, method, device="cpu", monitor=resuming)
    assert again.trials == whole.trials
    assert torch.equal(weights(again.model), weights(whole.model))
    assert (again.seconds_of_all, whole.seconds_of_all is None) == (None, False)
    rows = [event for event in events if isinstance(event, HistoryRow)]
    assert len(rows) == 7 + (len(whole.trials) - 2) * 9  # the rest of the second trial, and those after it


def test_training_goes_on_to_the_same_weights(digits: Data, tmp_path: Path) -> None:
    start = famr.new_model(
        "timm:vit_tiny_patch16_224", digits.labels, from_scratch=True, arguments={**SMALL_VIT, "drop_rate": 0.2}
    )
    images = digits.train.take(torch.arange(96))
    training = famr.Training(epochs=3, batch_size=32, learning_rate=1e-3, augmentation=Augmentation(0.8, mirror=False))
    whole = famr.fit(start, images, training, device="cpu")
    place = ResumeState(tmp_path / "u", every=0.0)
    with pytest.raises(PlugPulledError):
        famr.fit(start, images, training, device="cpu", resume_state=place, on_event=stop_after(1))
    again = famr.fit(start, images, training, device="cpu", resume_state=ResumeState(place.folder))
    assert torch.equal(weights(again.model), weights(whole.model))
    assert [row.loss for row in again.history] == [row.loss for row in whole.history]


@pytest.fixture
def state(tmp_path: Path) -> ResumeState:
    found = ResumeState(tmp_path / "u", every=0.0)
    assert found.begin(seed=1) is None
    found.keep({"weight.0": torch.arange(3.0)}, {"epoch": 1})
    return found


def test_a_state_comes_back_as_it_was(state: ResumeState) -> None:
    tensors, facts = ResumeState(state.folder).begin(seed=1) or ({}, {})
    assert torch.equal(tensors["weight.0"], torch.arange(3.0))
    assert facts == {"epoch": 1}


def test_the_state_of_another_run_is_refused(state: ResumeState) -> None:
    other = ResumeState(state.folder)
    with pytest.raises(RequestError, match="another run: it differs in method, seed"):
        other.begin(seed=2, method="sgd")
    assert not other.begun, "nobody is told to go on from it"
    assert state.begun
    own = ResumeState(state.folder)
    assert own.begin(seed=1) is not None
    assert own.begun


@pytest.mark.parametrize("damage", ["tensors", "json", "link"])
def test_a_damaged_state_is_refused(state: ResumeState, tmp_path: Path, damage: str) -> None:
    (file,) = state.folder.glob("*.safetensors")
    if damage == "json":
        (state.folder / "state.json").write_text("{", encoding="utf-8")
    elif damage == "tensors":
        file.write_bytes(file.read_bytes()[:-1] + b"x")
    else:
        file.replace(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="damaged"):
        ResumeState(state.folder).begin(seed=1)


def test_a_kill_while_a_state_is_written_leaves_the_last_one(
    state: ResumeState, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: object) -> None:
        raise PlugPulledError

    monkeypatch.setattr(Path, "replace", dies)
    with pytest.raises(PlugPulledError):
        state.keep({"weight.0": torch.zeros(3)}, {"epoch": 2})
    found = ResumeState(state.folder).begin(seed=1)
    assert found is not None
    assert found.facts == {"epoch": 1}


def test_nothing_in_a_state_is_pickled(state: ResumeState) -> None:
    assert {file.suffix for file in state.folder.iterdir()} == {".json", ".safetensors"}
    assert json.loads((state.folder / "state.json").read_text(encoding="utf-8"))["facts"] == {"epoch": 1}


def test_without_names_a_run_cannot_go_on(tmp_path: Path) -> None:
    loader = [(torch.randn(4, 3), torch.zeros(4, dtype=torch.long))]
    with pytest.raises(FamrError, match="named images"):
        famr.forget(
            nn.Linear(3, 2),
            method=METHODS["paper"],
            forget=loader,
            monitor=famr.Monitor(resume_state=ResumeState(tmp_path / "u")),
        )
