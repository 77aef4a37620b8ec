"""Predictions of a model on stored images."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

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
    """What a model says about stored images, in their order."""
    batches = evaluation_batches(images, model.require_preprocessing(), device, ranks)
    if ranks.sharded:
        from famr.engine.fsdp import spread_copy

        return predict_batches(spread_copy(model, device, ranks), batches(None), device, precision, ranks)
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
    """Run a model in evaluation mode over batches that are already on its device; every rank gets all answers."""
    logits, targets = [], []
    with eval_mode(model.module), tf32_matmul(), ready_attention(device):
        for images, labels, _positions in batches:
            with autocast(device, precision):
                said = halve_on_oom(lambda some: at_least_float32(model.logits(some)), images)
            logits.append(ranks.gather(said, len(labels)))
            targets.append(labels)
    return require_known_classes(model, Predictions(torch.cat(logits).cpu(), torch.cat(targets).cpu()))


def require_known_classes(model: Classifier, found: Predictions) -> Predictions:
    """Predictions to images of classes that the model has; an error where it has not."""
    if int(found.targets.max()) >= found.logits.shape[-1]:
        raise DataError(
            f"The data has class index {int(found.targets.max())}, the head only {found.logits.shape[-1]} outputs.",
            where=model.spec,
            fix="Use the data the checkpoint was trained on.",
        )
    return found


@contextmanager
def on_device(module: nn.Module, device: torch.device) -> Iterator[None]:
    """Have a network on a device for a while, and bring it back."""
    home = next(module.parameters()).device
    module.to(device)
    try:
        yield
    finally:
        module.to(home)


def predict_splits(
    splits: Splits, model: Classifier, device: torch.device, precision: Precision = "fp32", ranks: Ranks = ALONE
) -> SplitPredictions:
    """What a model says about the forget set and the held-out sets of a request."""

    def said(images: Images | None) -> Predictions | None:
        return None if images is None else predict(model, images, device, precision, ranks)

    return SplitPredictions(
        forget=predict(model, splits.forget, device, precision, ranks),
        test=said(splits.test),
        forget_test=said(splits.forget_test),
    )


def accuracy_on_images(model: Classifier, images: Images, device: torch.device, ranks: Ranks = ALONE) -> float | None:
    """Accuracy on stored images; None where they have no labels."""
    return accuracy(predict(model, images, device, ranks=ranks))
