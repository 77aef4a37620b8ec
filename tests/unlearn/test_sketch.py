"""The sketch: taken once, it replaces the training data, for one set of weights only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import famr
from conftest import alg1
from famr.anchors import AnchorInputs, KFACAnchor, original_weights
from famr.anchors.statistics import EIGEN_TENSORS, fisher_diagonal, kfac_statistics
from famr.data import Data
from famr.data.loaders import EVALUATION_BATCH, image_batches, order
from famr.engine.plain import PlainSession
from famr.errors import CheckpointError, RequestError
from famr.models.classifier import eval_mode, logits_of
from small import save_small


@pytest.fixture(scope="module")
def sketch(original: famr.Classifier, digits: Data) -> famr.Sketch:
    return famr.take_sketch(original, digits, images=120, device="cpu")


SETTINGS = {"optimiser": "adam", "learning_rate": 3e-4, "reduction": "mean", "batch_size": 32, "target": "masked"}


def test_a_sketch_comes_back_from_its_file(sketch: famr.Sketch, tmp_path: Path) -> None:
    sketch.save(tmp_path / "a.safetensors")
    again = famr.Sketch.load(tmp_path / "a.safetensors")
    assert again.weights_sha256 == sketch.weights_sha256
    assert (again.images, again.class_counts) == (120, sketch.class_counts)
    assert again.held_out is not None
    assert sketch.held_out is not None
    assert again.held_out.entropy == sketch.held_out.entropy
    assert again.held_out.entropy_when_wrong == sketch.held_out.entropy_when_wrong
    assert torch.equal(again.held_out.margins, sketch.held_out.margins)  # type: ignore[arg-type]
    assert all(torch.equal(a, b) for a, b in zip(again.fisher.diagonal, sketch.fisher.diagonal, strict=True))
    for ours, theirs in zip(again.fisher.layers, sketch.fisher.layers, strict=True):
        assert (ours.weight, ours.bias) == (theirs.weight, theirs.bias)
        assert all(torch.equal(getattr(ours, name), getattr(theirs, name)) for name in EIGEN_TENSORS)


def test_a_sketch_has_the_fisher_information_of_its_images(
    original: famr.Classifier, digits: Data, sketch: famr.Sketch
) -> None:
    some = digits.train.take(order(len(digits.train), 0)[:120])
    batches = image_batches(some, original.require_preprocessing(), EVALUATION_BATCH, torch.device("cpu"))
    draws = torch.Generator().manual_seed(0)
    with eval_mode(original.module):
        diagonal = fisher_diagonal(original.module, logits_of, batches(None), draws)
        layers, _ = kfac_statistics(original.module, logits_of, batches(None), draws)
    for ours, theirs in zip(sketch.fisher.diagonal, diagonal, strict=True):
        torch.testing.assert_close(ours, theirs)
    for stored, taken in zip(sketch.fisher.layers, layers, strict=True):
        assert (stored.weight, stored.bias) == (taken.weight, taken.bias)
        matrix = torch.randn(len(taken.g), len(taken.a), generator=torch.Generator().manual_seed(1))
        torch.testing.assert_close(stored.times(matrix), taken.times(matrix))


def test_an_anchor_from_a_sketch_concerns_the_parameters_that_may_change(
    original: famr.Classifier, sketch: famr.Sketch
) -> None:
    session = PlainSession(original, torch.device("cpu"), "fp32", None)
    names = [name for name, _ in session.model.module.named_parameters() if name.startswith("blocks.1.")]
    session.train_only(names)
    anchor = KFACAnchor.build(AnchorInputs(session, original_weights(session), None, sketch.fisher, seed=0))
    assert len(anchor.rest) == len(names)
    weights = {names[layer.weight]: layer for layer in anchor.layers}
    assert set(weights) == {f"blocks.1.{part}.weight" for part in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")}
    for name, layer in weights.items():
        (stored,) = [other for other in sketch.fisher.layers if sketch.fisher.names[other.weight] == name]
        assert torch.equal(layer.U, stored.U)
        assert layer.bias is not None
        assert names[layer.bias] == name.replace("weight", "bias")


def test_a_run_with_a_sketch_computes_no_eigenvectors(
    original: famr.Classifier, without_three: famr.Splits, sketch: famr.Sketch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(_matrix: torch.Tensor) -> object:
        raise AssertionError("eigenvectors were computed")

    monkeypatch.setattr(torch.linalg, "eigh", never)
    alone = famr.forget_only(without_three.forget)
    result = famr.forget(original, alone, famr.FAMR(epochs=2, strength=10.0), sketch=sketch, device="cpu")
    assert result.method.anchor == "kfac"


def test_a_sketch_without_its_eigenvectors_is_no_sketch(sketch: famr.Sketch, tmp_path: Path) -> None:
    """As one of an earlier version, which had the matrices themselves."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    sketch.save(tmp_path / "a.safetensors")
    with safe_open(str(tmp_path / "a.safetensors"), framework="pt") as stored:
        header, tensors = stored.metadata(), {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    older = {name.replace("U.", "A."): tensor for name, tensor in tensors.items()}
    save_file(older, tmp_path / "b.safetensors", header)
    with pytest.raises(CheckpointError, match="earlier version") as caught:
        famr.Sketch.load(tmp_path / "b.safetensors")
    assert caught.value.exit_code == 4


@pytest.mark.parametrize("anchor", ["fisher", "kfac"])
def test_a_sketch_and_the_images_it_was_taken_from_give_the_same_anchor(
    original: famr.Classifier, digits: Data, without_three: famr.Splits, sketch: famr.Sketch, anchor: str
) -> None:
    method = alg1(**{**SETTINGS, "anchor": anchor, "strength": 10.0, "fisher_images": 120, "epochs": 2})
    same = digits.train.take(order(len(digits.train), 0)[:120]).take(torch.argsort(order(120, 0)))
    by_sketch = famr.forget(
        original, without_three, method, sketch=sketch, device="cpu", monitor=famr.Monitor(track_retain=False)
    )
    by_images = famr.forget(
        original, without_three, method, anchor_images=same, device="cpu", monitor=famr.Monitor(track_retain=False)
    )
    rough = 0.5 if anchor == "kfac" else 1e-3  # K-FAC draws its labels after the diagonal has drawn its own
    assert by_sketch.history[-1].loss_anchor == pytest.approx(by_images.history[-1].loss_anchor, rel=rough)


def test_with_a_sketch_the_forget_images_are_enough(
    original: famr.Classifier, digits: Data, without_three: famr.Splits, sketch: famr.Sketch
) -> None:
    alone = famr.forget_only(without_three.forget)
    method = alg1(**{**SETTINGS, "anchor": "kfac", "strength": 30.0})
    result = famr.forget(original, alone, method, sketch=sketch, device="cpu")
    scores = famr.compare(original, result.model, None, without_three, device="cpu")
    assert scores.unlearned.forget_accuracy < 0.05  # type: ignore[operator]
    assert scores.unlearned.retain_accuracy > scores.original.retain_accuracy - 0.1  # type: ignore[operator,union-attr]
    assert result.method.temperature is not None


def test_a_sketch_of_other_weights_is_refused(
    original: famr.Classifier, without_three: famr.Splits, sketch: famr.Sketch
) -> None:
    other = original.copy()
    with torch.no_grad():
        next(other.module.parameters()).add_(1e-6)
    with pytest.raises(CheckpointError, match="other weights") as caught:
        famr.forget(other, without_three, sketch=sketch, device="cpu")
    assert caught.value.exit_code == 4


def test_taking_a_sketch_does_not_change_the_model(original: famr.Classifier, sketch: famr.Sketch) -> None:
    assert original.digest() == sketch.weights_sha256
    assert all(parameter.grad is None for parameter in original.module.parameters())


@pytest.mark.parametrize("content", [b"", b"no sketch at all"])
def test_a_file_that_is_no_sketch_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match="no sketch"):
        famr.Sketch.load(tmp_path / "x.safetensors")
    with pytest.raises(CheckpointError, match="no sketch"):
        famr.Sketch.load(tmp_path / "missing.safetensors")


@pytest.mark.parametrize("images", [0, -5])
def test_a_sketch_needs_images(
    original: famr.Classifier, digits: Data, original_run: Path, run: Callable[..., tuple[int, str, str]], images: int
) -> None:
    with pytest.raises(RequestError, match=f"at least 1, got {images}"):
        famr.take_sketch(original, digits, images=images)
    code, _, err = run("sketch", original_run, "--data", "digits", f"--images={images}")
    assert code == 2
    assert "at least 1" in err


def test_weights_are_no_sketch(original_run: Path) -> None:
    with pytest.raises(CheckpointError, match="no sketch"):
        famr.Sketch.load(original_run / "model.safetensors")


def test_sketch_and_forget_from_the_command_line(
    run: Callable[..., tuple[int, str, str]], original_run: Path, digits: Data, tmp_path: Path
) -> None:
    file = tmp_path / "s.safetensors"
    taken = (
        "sketch",
        original_run,
        "--data",
        "digits",
        "--images",
        60,
        "--proxies",
        0,
        "--output",
        file,
        "--device",
        "cpu",
    )
    assert run(*taken)[0] == 0
    assert run(*taken)[0] == 2  # it exists
    assert [path.name for path in tmp_path.iterdir()] == [file.name]
    options = ("--model", original_run, "--data", "digits", "--class", "3", "--anchor", "kfac", "--sketch", file)
    options = (*options, "--paper", "--no-gates", "--epochs", 1, "--device", "cpu", "-q")
    code, _, err = run("forget", *options, "--output-dir", tmp_path / "run")
    assert code == 0, err
    again = ["5" if word == "3" else word for word in ("--model", tmp_path / "run", *options[2:])]
    code, _, err = run("forget", *again, "--output-dir", tmp_path / "next")
    assert code == 0, err  # by its records, the model was unlearned from the sketch's own
    other = save_small(tmp_path / "other", digits.labels)
    code, _, err = run("forget", "--model", other, *options[2:], "--output-dir", tmp_path / "third")
    assert code == 4
    assert "other weights" in err
    assert not (tmp_path / "third").exists()
