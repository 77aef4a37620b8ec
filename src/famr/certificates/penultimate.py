"""The features a certified head stands on: what goes into a classifier's last linear layer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from famr.data import Images
from famr.data.loaders import EVALUATION_BATCH, image_batches
from famr.errors import RequestError
from famr.evaluation.evaluate import placed
from famr.models import Classifier
from famr.models.classifier import evaluating

Call = tuple[str, nn.Linear, Tensor]
"""The name of a linear layer, the layer, and what went into it."""


@torch.no_grad()
def head_features(classifier: Classifier, images: Images, device: torch.device) -> Tensor:
    """What goes into the classifier's last linear layer, each image's vector divided by its norm, as doubles.

    Keep them for later removals: a GPU may give other last digits to the same image in another batch.
    """
    rows: list[Tensor] = []
    with placed(classifier.module, device), evaluating(classifier.module), _last_call(classifier.module) as calls:
        for batch in image_batches(images, classifier.prepared_by(), EVALUATION_BATCH, device)(None):
            logits = classifier.logits(batch.images)
            _, given = _head(calls, logits, classifier.spec)
            rows.append(given.double().cpu())
    return nn.functional.normalize(torch.cat(rows), dim=1)


@torch.no_grad()
def head_layer(classifier: Classifier) -> str:
    """The name of the last linear layer, asked with a blank image."""
    prepared = classifier.prepared_by()
    parameter = next(classifier.module.parameters())
    blank = torch.zeros(1, prepared.channels, *prepared.crop, device=parameter.device, dtype=parameter.dtype)
    with evaluating(classifier.module), _last_call(classifier.module) as calls:
        return _head(calls, classifier.logits(blank), classifier.spec)[0]


@contextmanager
def _last_call(module: nn.Module) -> Iterator[list[Call]]:
    """The last call of a linear layer, kept up to date."""
    calls: list[Call] = []
    names = {part: name for name, part in module.named_modules() if isinstance(part, nn.Linear)}

    def note(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        assert isinstance(layer, nn.Linear)
        calls[:] = [(names[layer], layer, inputs[0])]

    handles = [part.register_forward_pre_hook(note) for part in names]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def _head(calls: list[Call], logits: Tensor, spec: str) -> tuple[str, Tensor]:
    if calls:
        name, layer, given = calls[0]
        if layer.out_features == logits.shape[1] and given.shape == (len(logits), layer.in_features):
            return name, given
    raise RequestError(
        "The network does not end in a linear layer with one output a class.",
        where=spec,
        fix="Use a classifier with a linear head.",
    )
