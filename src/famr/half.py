"""A network in bf16 throughout: its weights are rounded for one forward pass, and keep their gradients in float32.

Under autocast alone a transformer's running sum and its normalisations stay in float32, which doubles what has to be
read and written between the matrix products. Here they are bf16 as well; sums inside each kernel are still float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

Standing = list[tuple[nn.Module, str, Tensor]]
"""Which tensor stands for a weight: its part of the network, its name there, and the tensor."""


def weights_standing(module: nn.Module) -> Standing:
    """Every weight of a network as it is now."""
    return [
        (part, name, tensor)
        for part in module.modules()
        for name, tensor in part._parameters.items()
        if tensor is not None
    ]


@contextmanager
def standing(weights: Standing) -> Iterator[None]:
    """Other tensors stand for the weights of a network; those it had come back after."""
    before = [(part, name, part._parameters[name]) for part, name, _ in weights]
    try:
        for part, name, tensor in weights:
            part._parameters[name] = tensor  # type: ignore[assignment]
        yield
    finally:
        for part, name, own in before:
            part._parameters[name] = own


@contextmanager
def halved(module: nn.Module) -> Iterator[None]:
    """The weights in bf16, differentiably; what has statistics of its own, as BatchNorm, keeps its precision."""
    rounded = [
        (part, name, tensor.to(torch.bfloat16))
        for part, name, tensor in weights_standing(module)
        if tensor.dtype == torch.float32 and not any(b.is_floating_point() for b in part.buffers(recurse=False))
    ]
    with standing(rounded):
        yield
