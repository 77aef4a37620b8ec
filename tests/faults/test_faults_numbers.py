"""Fault 30: numbers that are not finite. The layer, the step and the images are named; the last good state stays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import famr
from conftest import Outcome, alg1
from famr.engine.finite import SHOWN, NotFiniteError, all_finite, name_bad_images
from famr.errors import NumericsError
from famr.models.classifier import Classifier
from famr.runs.events import Step
from famr.runs.resume import ResumeState
from fault_table import fault, seen, told
from small import QUICK, save_pictures, save_small, small_model

Command = Callable[..., Outcome]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("numbers")
    save_small(path / "model")
    save_pictures(path / "data")
    return path


def overflowing() -> Classifier:
    """Finite weights and logits, but features of 10²⁰, whose squares overflow."""
    model = small_model()
    with torch.no_grad():
        model.module.norm.weight.mul_(1e20)  # type: ignore[union-attr,operator]
        model.module.head.weight.mul_(1e-20)  # type: ignore[union-attr,operator]
    return model


@fault(30)
def test_a_step_after_which_numbers_are_not_finite(run: Command, folder: Path, tmp_path: Path) -> None:
    common = ("--model", folder / "model", "--data", f"folder:{folder / 'data'}", "--class", "cat", *QUICK)
    done = run("forget", *common, "--learning-rate", "1e38", "--batch-size", 2, "--output-dir", tmp_path / "run")
    assert done.code == 5, done.err
    where = next(line for line in done.err.splitlines() if "where:" in line)
    step, layer, images = where.replace(";", ",").split(", ", 2)
    assert step == "  where: epoch 1"
    assert layer == "step 2"
    weight, _, pictures = images.partition(", images ")
    name = weight.split()[0]
    assert name in dict(small_model().module.named_parameters())
    assert [picture.startswith("cat/") for picture in pictures.split(", ")] == [True, True]
    assert not any(tmp_path.iterdir())
    seen(30, told(done.code, done.err))


@fault(30)
@pytest.mark.parametrize(("anchor", "layer"), [("fisher", "head.weight first of 1"), ("kfac", "head first of 1")])
def test_fisher_information_that_is_not_finite(folder: Path, anchor: str, layer: str) -> None:
    splits = famr.split(famr.open_data(f"folder:{folder / 'data'}"), famr.Request(classes=["cat"]))
    method = alg1(anchor=anchor, epochs=1, fisher_images=4)
    with pytest.raises(NumericsError) as caught:
        famr.forget(overflowing(), splits, method, device="cpu")
    assert caught.value.exit_code == 5
    assert str(caught.value.where).startswith(f"{layer} layers, batch 1; images ")
    names = str(caught.value.where).partition("images ")[2].split(", ")
    assert len(names) == 4
    assert set(names) <= set(splits.retain.ids)  # type: ignore[union-attr]
    seen(30, f"{caught.value.exit_code}: {caught.value.what}")


@fault(30)
def test_a_sketch_that_is_not_finite(folder: Path) -> None:
    data = famr.open_data(f"folder:{folder / 'data'}")
    with pytest.raises(NumericsError, match=r"Fisher information .*\n.*head\.weight first of 1 layers") as caught:
        famr.take_sketch(overflowing(), data, device="cpu")
    seen(30, f"{caught.value.exit_code}: {caught.value.what}")


@fault(30)
def test_training_names_the_step_too(folder: Path) -> None:
    wild = famr.Training(epochs=1, batch_size=4, learning_rate=1e30, warmup_share=0.0, augmentation=None)
    with pytest.raises(NumericsError, match="no longer a finite number") as caught:
        famr.fit(small_model(), famr.open_data(f"folder:{folder / 'data'}").train, wild, device="cpu")
    assert "epoch 1, step " in str(caught.value.where)
    assert "; images " in str(caught.value.where)
    seen(30, f"{caught.value.exit_code}: {caught.value.what}")


@fault(30)
def test_the_last_good_state_is_kept(folder: Path, tmp_path: Path) -> None:
    """A device that fails in the second epoch: the weights of the first are there, and the run resumes from them."""
    broken: list[bool] = []

    def fails(_module: nn.Module, _inputs: object, output: Tensor) -> Tensor:
        return output * float("nan") if broken else output

    def break_the_second(event: object) -> None:
        if isinstance(event, Step) and event.step == 5:
            broken.append(True)

    splits = famr.split(famr.open_data(f"folder:{folder / 'data'}"), famr.Request(classes=["cat"]))
    method = alg1(epochs=3, batch_size=2, learning_rate=1e-3)
    model = small_model()
    whole = famr.forget(model, splits, method, device="cpu")
    model.module.register_forward_hook(fails)
    state = ResumeState(tmp_path / "u", every=0.0)
    with pytest.raises(NumericsError) as caught:
        famr.forget(
            model, splits, method, device="cpu", monitor=famr.Monitor(resume_state=state, on_event=break_the_second)
        )
    assert "epoch 2, step 3" in str(caught.value.where)
    (file,) = state.folder.glob("*.safetensors")
    assert all(bool(torch.isfinite(tensor).all()) for tensor in load_file(file).values())
    broken.clear()
    again = famr.forget(
        model, splits, method, device="cpu", monitor=famr.Monitor(resume_state=ResumeState(state.folder))
    )
    for ours, theirs in zip(again.module.parameters(), whole.module.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    seen(30, "the state of the last good epoch is kept, and `--resume` goes on from it")


def test_images_are_named_by_id_or_by_index_and_the_rest_is_counted() -> None:
    for ids, first in (([f"{index}.png" for index in range(20)], "3.png"), (None, "3")):
        error = NotFiniteError("What.", where="epoch 1, step 1", fix="Do.", positions=range(3, 3 + SHOWN + 2))
        with pytest.raises(NumericsError, match="What") as caught, name_bad_images(ids):
            raise error
        assert f"; images {first}, " in str(caught.value.where)
        assert str(caught.value.where).endswith(" and 2 more")


def test_numbers_are_finite_though_their_sum_is_not() -> None:
    large, small = torch.full((4,), 3e38), torch.ones(2)
    assert all_finite([large, small])
    for wrong in (torch.inf, -torch.inf, torch.nan):
        assert not all_finite([large, torch.tensor([1.0, wrong])])
        assert not all_finite([small, torch.tensor([1.0, wrong])])
