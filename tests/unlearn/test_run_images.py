"""Which images a run reads, for what, and in batches of which sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import timm
import torch
from torch import Tensor

import famr
from famr.anchors import FunctionAnchor
from famr.data import Data
from famr.data.loaders import Batch
from famr.data.splits import sample_per_class
from famr.engine.inference import predict
from famr.metrics.forgetting import correct
from famr.targets.base import HeldOutStatistics
from famr.targets.masked import without
from famr.targets.tempered import matching_temperature
from famr.unlearn import inputs as run_inputs
from famr.unlearn.inputs import RunInputs

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model(digits: Data) -> famr.Classifier:
    torch.manual_seed(0)
    module = timm.create_model(
        "vit_tiny_patch16_224", img_size=16, patch_size=4, embed_dim=48, depth=4, num_heads=3, num_classes=10
    )
    with torch.no_grad():
        module.head.weight.normal_(std=0.2)  # confident about some images
    return famr.Classifier(module, digits.labels, famr.Preprocessing(16, (16, 16), (0.5,) * 3, (0.5,) * 3))


@pytest.fixture(scope="module")
def splits(digits: Data) -> famr.Splits:
    return famr.split(digits, famr.Request(classes=["3"]))


QUIET = famr.Monitor(track_retain=False)


def steps_of(
    model: famr.Classifier, splits: famr.Splits, method: famr.FAMR, monkeypatch: pytest.MonkeyPatch
) -> list[int]:
    """Images of each step of an epoch."""
    from famr.engine.prefix import PrefixSession

    sizes: list[int] = []
    run = PrefixSession.run

    def noted(session: PrefixSession, step: object, batch: Batch) -> Tensor:
        sizes.append(len(batch.labels))
        return run(session, step, batch)  # type: ignore[arg-type]

    monkeypatch.setattr(PrefixSession, "run", noted)
    famr.forget(model, splits, replace(method, epochs=1), device="cpu", monitor=QUIET)
    return sizes


def test_the_steps_of_an_epoch_have_one_size_where_they_can(
    model: famr.Classifier, splits: famr.Splits, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(splits.forget) == 146
    mean = famr.FAMR(effort="quick", strength=1.0, function_strength=0.0, anchor="l2", batch_size=100)
    assert steps_of(model, splits, mean, monkeypatch) == [73, 73]
    monkeypatch.undo()
    assert steps_of(model, splits, replace(famr.FAMR.paper(), batch_size=100), monkeypatch) == [100, 46]


def test_some_held_out_images_tell_how_confident_a_target_is(
    model: famr.Classifier, splits: famr.Splits, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert splits.test is not None
    method = famr.FAMR(target="masked", strength=1.0, epochs=1)
    temperatures = []
    for count in (50, 10_000):
        monkeypatch.setattr(run_inputs, "CALIBRATION_IMAGES", count)
        images = RunInputs.of(model, splits, None).calibration_images()
        assert images is not None
        assert len(set(images.ids)) == min(count, len(splits.test))
        temperatures.append(famr.forget(model, splits, method, device="cpu", monitor=QUIET).method.temperature)
    entropy = HeldOutStatistics.of(predict(model, splits.test, CPU)).entropy_when_wrong
    assert entropy is not None
    masked = without(predict(model, splits.forget, CPU).logits, torch.tensor([3]))
    assert temperatures[1] == pytest.approx(matching_temperature(masked, entropy), rel=1e-4)
    assert temperatures[0] != pytest.approx(temperatures[1], rel=1e-4)


@pytest.mark.parametrize("share", [None, 1.0])
def test_a_run_is_tracked_on_some_held_out_images_and_evaluated_on_all(
    model: famr.Classifier, splits: famr.Splits, monkeypatch: pytest.MonkeyPatch, share: float | None
) -> None:
    monkeypatch.setattr(run_inputs, "CALIBRATION_IMAGES", 50)
    assert splits.test is not None
    images = RunInputs.of(model, splits, None).calibration_images()
    assert images is not None
    result = famr.forget(model, splits, famr.FAMR(strength=1.0, epochs=2, edited_share=share), device="cpu")
    for row, network in ((result.history[0], model), (result.history[-1], result.model)):
        predictions = predict(network, images, CPU)
        accuracy = float(correct(predictions.logits, predictions.targets).mean())
        assert row.retain_accuracy == pytest.approx(accuracy)
    scores = famr.evaluate(result, splits, device="cpu")
    assert scores.unlearned.counts["retain"] == len(splits.test)


@pytest.mark.parametrize(("most", "count"), [(500, 495), (50, 45), (4, 4)])
def test_a_run_is_watched_on_retained_images_that_do_not_anchor_it(
    model: famr.Classifier, splits: famr.Splits, monkeypatch: pytest.MonkeyPatch, most: int, count: int
) -> None:
    monkeypatch.setattr(run_inputs, "WATCHED_IMAGES", most)
    assert splits.retain is not None
    inputs = RunInputs.of(model, splits, None)
    watched = inputs.watched_images(20, seed=1)
    assert watched is not None
    assert len(watched) == len(set(watched.ids)) == count
    assert set(watched.ids) <= set(splits.retain.ids)
    assert not set(watched.ids) & set(sample_per_class(splits.retain, 20, seed=1).ids)
    all_anchored = inputs.watched_images(1000, seed=1)
    assert all_anchored is not None
    assert len(all_anchored) == count  # where all of them anchor it, there are no others
    assert RunInputs.of(model, famr.forget_only(splits.forget), None).watched_images(20, seed=1) is None


@pytest.mark.parametrize("share", [None, 1.0])
def test_anchored_images_come_in_passes_of_even_batches(
    model: famr.Classifier, splits: famr.Splits, monkeypatch: pytest.MonkeyPatch, share: float | None
) -> None:
    sizes: set[int] = set()
    own = FunctionAnchor.draw

    def noted(anchor: FunctionAnchor) -> None:
        own(anchor)
        assert anchor._drawn is not None
        sizes.add(len(anchor._drawn.labels))

    monkeypatch.setattr(FunctionAnchor, "draw", noted)
    method = famr.FAMR(strength=1.0, epochs=2, edited_share=share)
    famr.forget(model, splits, method, device="cpu", monitor=QUIET)
    assert sizes == {90}  # twenty of each of nine classes, at most 128 at a time


class Streaming:
    """A loader that does not know how long it is, as one over a stream of images."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield torch.zeros(4, 3, 16, 16), torch.arange(4)

    def __len__(self) -> int:
        raise TypeError("a stream has no length")


def test_anchor_images_may_come_from_a_stream(model: famr.Classifier, splits: famr.Splits) -> None:
    method = famr.FAMR(strength=1e-3, epochs=1)
    result = famr.forget(model, splits, method, anchor_images=Streaming(), device="cpu", monitor=QUIET)
    assert result.history[-1].step > 0
