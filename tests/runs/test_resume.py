"""A run that was stopped resumes and ends with the same weights; the state of another run is never used."""

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


class StoppedError(Exception):
    """The process is stopped here."""


def weights(model: famr.Classifier) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.module.parameters()])


def stop_after(epoch: int):  # type: ignore[no-untyped-def]
    def on_event(event: object) -> None:
        if isinstance(event, HistoryRow | TrainingRow) and event.epoch == epoch + 1:
            raise StoppedError

    return on_event


@pytest.mark.parametrize("name", list(METHODS))
@pytest.mark.parametrize("epoch", [1, 2])
def test_a_resumed_run_ends_with_the_same_weights(
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
    state = ResumeState(tmp_path / "run.unfinished", every=0.0)
    with pytest.raises(StoppedError):
        run(state, stop_after(epoch))
    seen: list[object] = []
    again = run(ResumeState(state.folder, every=0.0), seen.append)
    assert torch.equal(weights(again.model), weights(whole.model))
    assert (
        min(event.epoch for event in seen if isinstance(event, HistoryRow)) == epoch + 1
    )  # finished epochs are not repeated
    assert whole.seconds_of_all is not None
    assert again.seconds_of_all is None  # the time of the first part is not known
    keys = ("epoch", "step", "loss_total", "drift", "forget_entropy")
    for ours, theirs in zip(again.history, whole.history, strict=True):
        assert [getattr(ours, key) for key in keys] == [getattr(theirs, key) for key in keys]


def test_a_resumed_search_does_not_repeat_finished_trials(
    original: famr.Classifier, without_three: famr.Splits, tmp_path: Path
) -> None:
    """The first strength is far too strong to forget with; the run is stopped in the second trial."""
    method = replace(QUICK, strength="auto", function_strength=10_000.0, epochs=8, budget=0.9)
    runs: list[int] = []

    def stop_in_the_second(event: object) -> None:
        if isinstance(event, HistoryRow) and event.epoch == 2:
            runs.append(2)
            if len(runs) == 2:
                raise StoppedError

    def run(state: ResumeState | None = None, on_event=None) -> famr.Unlearned:  # type: ignore[no-untyped-def]
        monitor = famr.Monitor(track_retain=False, resume_state=state, on_event=on_event)
        return famr.forget(original, without_three, method, device="cpu", monitor=monitor)

    whole = run()
    assert len(whole.trials) > 1
    state = ResumeState(tmp_path / "u", every=0.0)
    with pytest.raises(StoppedError):
        run(state, stop_in_the_second)
    events: list[object] = []
    again = run(state, events.append)
    assert again.trials == whole.trials
    assert torch.equal(weights(again.model), weights(whole.model))
    assert (again.seconds_of_all, whole.seconds_of_all is None) == (None, False)
    rows = [event for event in events if isinstance(event, HistoryRow)]
    assert len(rows) == 7 + (len(whole.trials) - 2) * 9  # the rest of the second trial, and those after it


def test_a_trial_that_was_stopped_after_its_last_epoch_has_the_same_outcome(
    original: famr.Classifier, without_three: famr.Splits, tmp_path: Path
) -> None:
    monitor = famr.Monitor(track_retain=False, resume_state=ResumeState(tmp_path / "u", every=0.0))
    method = replace(QUICK, strength="auto", target="uniform", epochs=8, budget=0.9)
    whole = famr.forget(original, without_three, method, device="cpu", monitor=monitor)
    again = famr.forget(original, without_three, method, device="cpu", monitor=monitor)
    assert again.seconds_of_all is None  # resumed
    assert again.trials == whole.trials


def test_resumed_training_ends_with_the_same_weights(digits: Data, tmp_path: Path) -> None:
    start = famr.new_model(
        "timm:vit_tiny_patch16_224", digits.labels, from_scratch=True, arguments={**SMALL_VIT, "drop_rate": 0.2}
    )
    images = digits.train.take(torch.arange(96))
    training = famr.Training(epochs=3, batch_size=32, learning_rate=1e-3, augmentation=Augmentation(0.8, mirror=False))
    whole = famr.fit(start, images, training, device="cpu")
    state = ResumeState(tmp_path / "u", every=0.0)
    with pytest.raises(StoppedError):
        famr.fit(start, images, training, device="cpu", resume_state=state, on_event=stop_after(1))
    again = famr.fit(start, images, training, device="cpu", resume_state=ResumeState(state.folder))
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
    assert not other.begun, "the command line offers no --resume"
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
        raise StoppedError

    monkeypatch.setattr(Path, "replace", dies)
    with pytest.raises(StoppedError):
        state.keep({"weight.0": torch.zeros(3)}, {"epoch": 2})
    found = ResumeState(state.folder).begin(seed=1)
    assert found is not None
    assert found.facts == {"epoch": 1}


def test_nothing_in_a_state_is_pickled(state: ResumeState) -> None:
    assert {file.suffix for file in state.folder.iterdir()} == {".json", ".safetensors"}
    assert json.loads((state.folder / "state.json").read_text(encoding="utf-8"))["facts"] == {"epoch": 1}


def test_a_run_on_a_loader_cannot_be_resumed(tmp_path: Path) -> None:
    loader = [(torch.randn(4, 3), torch.zeros(4, dtype=torch.long))]
    with pytest.raises(FamrError, match="named images"):
        famr.forget(
            nn.Linear(3, 2),
            method=METHODS["paper"],
            forget=loader,
            monitor=famr.Monitor(resume_state=ResumeState(tmp_path / "u")),
        )
