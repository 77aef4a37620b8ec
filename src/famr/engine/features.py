"""Activations of a classifier's layers on stored images: one vector an image, from one pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from famr.data import Images
from famr.data.loaders import EVALUATION_BATCH, image_batches
from famr.engine.inference import on_device
from famr.losses.objective import at_least_float32
from famr.models import Classifier
from famr.models.activations import capture_layer
from famr.models.classifier import eval_mode
from famr.models.layers import head_call, head_name, last_linear_call

PENULTIMATE = "penultimate"
"""The input of the head, in place of the name of a layer."""

Read = Callable[[int], Tensor]
"""What a layer said in the last forward pass about that many images."""


@torch.no_grad()
def layer_features(
    classifier: Classifier,
    images: Images,
    device: torch.device,
    layers: Sequence[str] = (PENULTIMATE,),
    *,
    channels_last: bool = False,
) -> dict[str, Tensor]:
    """(images, channels) of each named layer, averaged over positions or tokens; the classifier is not changed."""
    rows: dict[str, list[Tensor]] = {name: [] for name in layers}
    module = classifier.module
    batches = image_batches(images, classifier.require_preprocessing(), EVALUATION_BATCH, device)
    with on_device(module, device), eval_mode(module), ExitStack() as taps:
        read = {name: taps.enter_context(_tapped(classifier, name, channels_last)) for name in layers}
        for batch in batches(None):
            module(batch.images)
            for name, last in read.items():
                rows[name].append(at_least_float32(last(len(batch.images))).cpu())
    return {name: torch.cat(found) for name, found in rows.items()}


@contextmanager
def _tapped(classifier: Classifier, layer: str, channels_last: bool) -> Iterator[Read]:
    """Read a layer's mean output, or what goes into the head."""
    if layer != PENULTIMATE:
        with capture_layer(classifier.module, layer, channels_last) as tap:
            yield lambda images: tap.features(images).mean(dim=-1)
        return
    last: list[Tensor] = []
    head = classifier.module.get_submodule(head_name(classifier))
    handle = head.register_forward_pre_hook(lambda _head, inputs: last.__setitem__(slice(None), inputs[:1]))
    try:
        yield lambda _images: last[0]
    finally:
        handle.remove()


@torch.no_grad()
def head_features(classifier: Classifier, images: Images, device: torch.device) -> Tensor:
    """What goes into the classifier's last linear layer, each image's vector divided by its norm, as doubles.

    Keep them for later removals: a GPU may give other last digits to the same image in another batch.
    """
    rows: list[Tensor] = []
    with (
        on_device(classifier.module, device),
        eval_mode(classifier.module),
        last_linear_call(classifier.module) as calls,
    ):
        for batch in image_batches(images, classifier.require_preprocessing(), EVALUATION_BATCH, device)(None):
            logits = classifier.logits(batch.images)
            _, given = head_call(calls, logits, classifier.spec)
            rows.append(given.double().cpu())
    return nn.functional.normalize(torch.cat(rows), dim=1)
