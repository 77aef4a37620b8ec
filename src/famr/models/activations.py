"""Activations of one layer, and their Gram matrix: style in the paper's sense [FAMR, Eq. (3), (4)]."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from famr.data.loaders import Batch
from famr.errors import RequestError
from famr.losses.objective import gram_matrix


class LayerOutput:
    """φ(x): the output of a layer in the last forward pass.

    Args:
        channels_last: Whether 4-dimensional outputs are (batch, height, width, channels).
    """

    def __init__(self, channels_last: bool) -> None:
        self._channels_last = channels_last
        self._output: Any = None

    def record(self, _layer: nn.Module, _inputs: Any, output: Any) -> None:
        """Forward hook of the layer."""
        self._output = output[0] if isinstance(output, (tuple, list)) else output

    def features(self, images: int) -> Tensor:
        """The activations as (batch, channels, positions): channels × positions of a CNN, features × tokens of a ViT.

        Args:
            images: Images of the last forward pass.

        Raises:
            RequestError: The layer does not return one row per image.
        """
        features = channels_by_positions(self._output, self._channels_last)
        if len(features) != images:
            raise RequestError(
                f"The style layer returns {len(features)} rows for {images} images.",
                where="style_layer",
                fix="Name a layer that keeps one row per image, e.g. the whole block and not its windowed attention.",
            )
        return features


def channels_by_positions(output: Any, channels_last: bool) -> Tensor:
    """A layer's output as (batch, channels, positions).

    Args:
        output: A tensor of 2 to 4 dimensions; of 3 it is (batch, tokens, features).
        channels_last: Whether a tensor of 4 is (batch, height, width, channels).

    Raises:
        RequestError: The output is anything else.

    >>> channels_by_positions(torch.zeros(2, 8, 4, 4), channels_last=False).shape  # a convolution
    torch.Size([2, 8, 16])
    >>> channels_by_positions(torch.zeros(2, 17, 8), channels_last=False).shape  # tokens of a ViT
    torch.Size([2, 8, 17])
    """
    if isinstance(output, Tensor) and output.ndim == 4:
        return output.permute(0, 3, 1, 2).flatten(2) if channels_last else output.flatten(2)
    if isinstance(output, Tensor) and output.ndim == 3:
        return output.mT
    if isinstance(output, Tensor) and output.ndim == 2:
        return output.unsqueeze(-1)
    shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
    raise RequestError(f"The style layer returns {shape}, not activations.", fix="Name a block or a convolution.")


@contextmanager
def capture_layer(module: nn.Module, layer: str, channels_last: bool) -> Iterator[LayerOutput]:
    """Record the output of a layer in each forward pass, for as long as the context lasts.

    Args:
        module: The network.
        layer: Name of one of its submodules.
        channels_last: As for `channels_by_positions`; not needed for networks of timm that state it themselves.

    Yields:
        The output of the last forward pass.

    Raises:
        RequestError: The network has no such layer.
    """
    modules = dict(module.named_modules())
    if layer not in modules or not layer:
        near = difflib.get_close_matches(layer, modules, n=5, cutoff=0.4)
        top = ", ".join(name for name, _ in module.named_children())
        raise RequestError(
            f"The network has no layer {layer!r}.",
            where="style_layer",
            fix=f"Did you mean {', '.join(near)}?" if near else f"Top layers: {top}.",
        )
    output = LayerOutput(channels_last or getattr(module, "output_fmt", "NCHW") == "NHWC")  # as timm's Swin
    handle = modules[layer].register_forward_hook(output.record)
    try:
        yield output
    finally:
        handle.remove()


@torch.no_grad()
def mean_gram(module: nn.Module, layer: LayerOutput, batches: Iterable[Batch]) -> Tensor:
    """G_target: the mean Gram matrix over images of a neutral style.

    Args:
        module: The network.
        layer: The style layer, from `capture_layer`.
        batches: Images of a neutral style.

    Returns:
        (channels, channels).

    Raises:
        RequestError: There are no images.
    """
    total, count = None, 0
    for images, _labels, _positions in batches:
        module(images)
        gram = gram_matrix(layer.features(len(images))).sum(dim=0)
        total = gram if total is None else total + gram
        count += len(images)
    if total is None:
        raise RequestError("There are no images of a neutral style.", fix="Give --style-target.")
    return total / count
