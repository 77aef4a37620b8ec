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


@torch.no_grad()
def layer_features(
    classifier: Classifier,
    images: Images,
    device: torch.device,
    layers: Sequence[str] = (PENULTIMATE,),
    *,
    channels_last: bool = False,
) -> dict[str, Tensor]:
    """Mean activations over positions or tokens; the classifier is not changed.

    Args:
        classifier: The model.
        images: The images.
        device: Where to compute.
        layers: Names of submodules, or `PENULTIMATE`.
        channels_last: Whether 4-dimensional activations end with their channels.

    Returns:
        (images, channels) in at least float32 by layer, on the CPU.
    """
    rows: dict[str, list[Tensor]] = {name: [] for name in layers}
    module = classifier.module
    batches = image_batches(images, classifier.require_preprocessing(), EVALUATION_BATCH, device)
    with on_device(module, device), eval_mode(module), ExitStack() as hooks:
        read = {name: hooks.enter_context(_hooked(classifier, name, channels_last)) for name in layers}
        for batch in batches(None):
            module(batch.images)
            for name, features_of in read.items():
                rows[name].append(at_least_float32(features_of(len(batch.images))).cpu())
    return {name: torch.cat(parts) for name, parts in rows.items()}


@contextmanager
def _hooked(classifier: Classifier, layer: str, channels_last: bool) -> Iterator[Callable[[int], Tensor]]:
    """A function of the number of images that gives a layer's features in the last forward pass."""
    if layer != PENULTIMATE:
        with capture_layer(classifier.module, layer, channels_last) as output:
            yield lambda images: output.features(images).mean(dim=-1)
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
    """Inputs of the classifier's last linear layer, each divided by its norm.

    Keep them for later removals: a GPU may give other last digits for the same image in another batch.

    Args:
        classifier: The model.
        images: The images.
        device: Where to compute.

    Returns:
        (images, width) in float64, on the CPU.
    """
    rows: list[Tensor] = []
    with (
        on_device(classifier.module, device),
        eval_mode(classifier.module),
        last_linear_call(classifier.module) as calls,
    ):
        for batch in image_batches(images, classifier.require_preprocessing(), EVALUATION_BATCH, device)(None):
            logits = classifier.logits(batch.images)
            _, inputs = head_call(calls, logits, classifier.spec)
            rows.append(inputs.double().cpu())
    return nn.functional.normalize(torch.cat(rows), dim=1)
