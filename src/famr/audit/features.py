"""What a classifier's layers make of images: one vector an image, from one pass, whatever library built the network."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from famr.certificates.penultimate import head_layer
from famr.data import Images
from famr.data.loaders import EVALUATION_BATCH, image_batches
from famr.evaluation.evaluate import placed
from famr.losses.objective import at_least_float32
from famr.models import Classifier
from famr.models.activations import listen
from famr.models.classifier import evaluating

PENULTIMATE = "penultimate"
"""What goes into the head, in place of the name of a layer."""

DOMINANT = 0.9
"""A part with this share of the weights is a wrapper: the blocks are found inside it."""

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
    batches = image_batches(images, classifier.prepared_by(), EVALUATION_BATCH, device)
    with placed(module, device), evaluating(module), ExitStack() as taps:
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
        with listen(classifier.module, layer, channels_last) as tap:
            yield lambda images: tap.features(images).mean(dim=-1)
        return
    last: list[Tensor] = []
    head = classifier.module.get_submodule(head_layer(classifier))
    handle = head.register_forward_pre_hook(lambda _head, inputs: last.__setitem__(slice(None), inputs[:1]))
    try:
        yield lambda _images: last[0]
    finally:
        handle.remove()


@torch.no_grad()
def block_layers(classifier: Classifier) -> tuple[str, ...]:
    """The blocks in the order of their calls: of a ViT the blocks of its encoder, of a ResNet its stem and its stages.

    From the top, every part that holds nearly all weights is opened. What is then called with weights of its own and
    returns activations of every image is a block; a part that only groups others is opened too. The head, and
    normalisation around the blocks, are none.
    """
    called: dict[nn.Module, int] = {}

    def note(part: nn.Module, _inputs: object, output: object) -> None:
        first = output[0] if isinstance(output, (tuple, list)) else output
        if isinstance(first, Tensor) and first.ndim >= 2 and len(first) == len(blank):
            called.setdefault(part, len(called))

    module = classifier.module
    prepared, parameter = classifier.prepared_by(), next(module.parameters())
    blank = torch.zeros(2, prepared.channels, *prepared.crop, device=parameter.device, dtype=parameter.dtype)
    handles = [part.register_forward_hook(note) for part in module.modules()]
    try:
        with evaluating(module):
            classifier.logits(blank)
    finally:
        for handle in handles:
            handle.remove()
    inside = module
    while (wrapper := _dominant(inside)) is not None:
        inside = wrapper
    names = {part: layer for layer, part in module.named_modules()}
    found = sorted(_called_parts(inside, called), key=called.__getitem__)
    return tuple(names[part] for part in found if names[part] != head_layer(classifier))


def _called_parts(module: nn.Module, called: Container[nn.Module]) -> list[nn.Module]:
    """The outermost called parts within a part that hold weights."""
    parts: list[nn.Module] = []
    for part in module.children():
        if _matrices(part):
            parts += [part] if part in called else _called_parts(part, called)
    return parts


def _dominant(module: nn.Module) -> nn.Module | None:
    """The child that holds nearly all of a part's weights, if there are several parts with weights inside it."""
    total = sum(parameter.numel() for parameter in module.parameters())
    for child in module.children():
        held = sum(parameter.numel() for parameter in child.parameters())
        parts = [part for part in child.children() if _matrices(part)]
        if held >= DOMINANT * total and (len(parts) > 1 or _dominant(child) is not None):
            return child
    return None


def _matrices(module: nn.Module) -> bool:
    """Whether a part holds more than biases and scales."""
    return any(parameter.ndim >= 2 for parameter in module.parameters())
