"""Predictions of a model on stored images."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from famr.data import Images
from famr.data.loaders import Batch, evaluation_batches
from famr.data.splits import Splits
from famr.engine.devices import Precision, autocast, ready_attention, tf32_matmul
from famr.engine.distributed import ALONE, Ranks
from famr.engine.oom import halve_on_oom
from famr.errors import DataError
from famr.losses.objective import at_least_float32
from famr.metrics.predictions import Predictions, SplitPredictions
from famr.metrics.scores import accuracy
from famr.models import Classifier
from famr.models.classifier import eval_mode


def predict(
    model: Classifier, images: Images, device: torch.device, precision: Precision = "fp32", ranks: Ranks = ALONE
) -> Predictions:
    """Predictions on stored images, in their order; the model is on its own device again afterwards.

    Args:
        model: The model.
        images: The images.
        device: Where to compute.
        precision: Of the forward passes.
        ranks: Processes that share the work; each gets all predictions.

    Raises:
        DataError: The images have a class that the model does not have.
    """
    batches = evaluation_batches(images, model.require_preprocessing(), device, ranks)
    if ranks.sharded:
        from famr.engine.fsdp import sharded_copy

        return predict_batches(sharded_copy(model, device, ranks), batches(None), device, precision, ranks)
    with on_device(model.module, device):
        return predict_batches(model, batches(None), device, precision, ranks)


@torch.no_grad()
def predict_batches(
    model: Classifier,
    batches: Iterable[Batch],
    device: torch.device,
    precision: Precision = "fp32",
    ranks: Ranks = ALONE,
) -> Predictions:
    """Predictions on batches, in evaluation mode.

    Args:
        model: The model, on the device.
        batches: One pass.
        device: Where the model is.
        precision: Of the forward passes.
        ranks: Processes that share every batch; each gets all predictions.

    Raises:
        DataError: The images have a class that the model does not have.
    """

    def logits_of_images(images: Tensor) -> Tensor:
        return at_least_float32(model.logits(images))

    logits, targets = [], []
    with eval_mode(model.module), tf32_matmul(), ready_attention(device):
        for images, labels, _positions in batches:
            with autocast(device, precision):
                rows = halve_on_oom(logits_of_images, images)
            logits.append(ranks.gather(rows, len(labels)))
            targets.append(labels)
    return require_known_classes(model, Predictions(torch.cat(logits).cpu(), torch.cat(targets).cpu()))


def require_known_classes(model: Classifier, predictions: Predictions) -> Predictions:
    """Predictions on images whose classes the model has.

    Args:
        model: For the error.
        predictions: Its predictions; they are returned.

    Raises:
        DataError: A label is larger than the head.
    """
    largest, outputs = int(predictions.targets.max()), predictions.logits.shape[-1]
    if largest >= outputs:
        raise DataError(
            f"The data has class index {largest}, the head only {outputs} outputs.",
            where=model.spec,
            fix="Use the data the checkpoint was trained on.",
        )
    return predictions


@contextmanager
def on_device(module: nn.Module, device: torch.device) -> Iterator[None]:
    """Move a network to a device, and back at the end.

    Args:
        module: The network.
        device: The device.
    """
    home = next(module.parameters()).device
    module.to(device)
    try:
        yield
    finally:
        module.to(home)


def predict_splits(
    splits: Splits, model: Classifier, device: torch.device, precision: Precision = "fp32", ranks: Ranks = ALONE
) -> SplitPredictions:
    """Predictions on the forget set and the held-out sets of a request.

    Args:
        splits: The sets.
        model: The model.
        device: Where to compute.
        precision: Of the forward passes.
        ranks: Processes that share the work.
    """

    def predict_set(images: Images | None) -> Predictions | None:
        return None if images is None else predict(model, images, device, precision, ranks)

    return SplitPredictions(
        forget=predict(model, splits.forget, device, precision, ranks),
        test=predict_set(splits.test),
        forget_test=predict_set(splits.forget_test),
    )


def accuracy_on_images(model: Classifier, images: Images, device: torch.device, ranks: Ranks = ALONE) -> float | None:
    """Accuracy on stored images; None where they have no labels.

    Args:
        model: The model.
        images: The images.
        device: Where to compute.
        ranks: Processes that share the work.
    """
    return accuracy(predict(model, images, device, ranks=ranks))
