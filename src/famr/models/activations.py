"""Style as the paper sees it: the Gram matrix of a layer's activations [FAMR, Eq. (3), (4)]."""

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
    """φ(x): what a named layer returned in the last forward pass, as (batch, channels, positions)."""

    def __init__(self, channels_last: bool) -> None:
        self._channels_last = channels_last
        self._output: Any = None

    def keep(self, _layer: nn.Module, _inputs: Any, output: Any) -> None:
        """Forward hook."""
        self._output = output[0] if isinstance(output, (tuple, list)) else output

    def features(self, images: int) -> Tensor:
        """Channels × positions of a CNN, features × tokens of a ViT, of as many images as went in."""
        features = channels_by_positions(self._output, self._channels_last)
        if len(features) != images:
            raise RequestError(
                f"The style layer returns {len(features)} rows for {images} images.",
                where="style_layer",
                fix="Name a layer that keeps one row an image, e.g. the whole block and not its windowed attention.",
            )
        return features


def channels_by_positions(output: Any, channels_last: bool) -> Tensor:
    """A layer's output as (batch, channels, positions).

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
def listen(module: nn.Module, layer: str, channels_last: bool) -> Iterator[LayerOutput]:
    """Keep the output of `layer` in each forward pass, for as long as the context lasts."""
    modules = dict(module.named_modules())
    if layer not in modules or not layer:
        near = difflib.get_close_matches(layer, modules, n=5, cutoff=0.4)
        raise RequestError(
            f"The network has no layer {layer!r}.",
            where="style_layer",
            fix=f"Did you mean {', '.join(near)}?" if near else f"Top layers: {', '.join(_children(module))}.",
        )
    tap = LayerOutput(channels_last or getattr(module, "output_fmt", "NCHW") == "NHWC")  # as timm's Swin says
    handle = modules[layer].register_forward_hook(tap.keep)
    try:
        yield tap
    finally:
        handle.remove()


def _children(module: nn.Module) -> list[str]:
    return [name for name, _ in module.named_children()]


@torch.no_grad()
def mean_gram(module: nn.Module, tap: LayerOutput, batches: Iterable[Batch]) -> Tensor:
    """G_target: the average Gram matrix over images of a neutral style."""
    total, count = None, 0
    for images, _labels, _positions in batches:
        module(images)
        gram = gram_matrix(tap.features(len(images))).sum(dim=0)
        total = gram if total is None else total + gram
        count += len(images)
    if total is None:
        raise RequestError("There are no images to take a neutral style from.", fix="Give --style-target.")
    return total / count
