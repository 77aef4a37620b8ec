"""The features a certified head stands on: what goes into a classifier's last linear layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from famr.batches import EVALUATION_BATCH, image_batches
from famr.data import Images
from famr.errors import RequestError
from famr.evaluation import placed
from famr.models import Classifier
from famr.models.classifier import evaluating


@torch.no_grad()
def head_features(classifier: Classifier, images: Images, device: torch.device) -> Tensor:
    """What goes into the classifier's last linear layer, each image's vector divided by its norm, as doubles.

    Keep them for later removals: a GPU may give other last digits to the same image in another batch.
    """
    rows: list[Tensor] = []
    calls: list[tuple[nn.Linear, Tensor]] = []

    def note(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        assert isinstance(layer, nn.Linear)
        calls[:] = [(layer, inputs[0])]  # the last call stays

    module = classifier.module
    handles = [part.register_forward_pre_hook(note) for part in module.modules() if isinstance(part, nn.Linear)]
    try:
        with placed(module, device), evaluating(module):
            for batch in image_batches(images, classifier.prepared_by(), EVALUATION_BATCH, device)(None):
                logits = classifier.logits(batch.images)
                rows.append(_head_input(calls, logits, classifier.spec))
    finally:
        for handle in handles:
            handle.remove()
    return nn.functional.normalize(torch.cat(rows), dim=1)


def _head_input(calls: list[tuple[nn.Linear, Tensor]], logits: Tensor, spec: str) -> Tensor:
    if calls:
        layer, given = calls[0]
        if layer.out_features == logits.shape[1] and given.shape == (len(logits), layer.in_features):
            return given.double().cpu()
    raise RequestError(
        "The network does not end in a linear layer with one output a class.",
        where=spec,
        fix="Use a classifier with a linear head.",
    )
