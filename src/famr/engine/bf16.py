"""A network in bf16 almost throughout: its weights are rounded for one forward pass, with gradients in float32.

Under autocast alone a transformer's running sum and its normalisations stay in float32, which doubles what has to be
read and written between the matrix products. Here they are bf16 as well; sums inside each kernel are still float32.

Not so the last normalisation and the last linear layer. Their rounding goes straight into the answers, the same way for
all images: where these are to be nearly uniform it is as large as what is left to learn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from famr.engine.grouping import groups

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


def last_layers(module: nn.Module) -> list[nn.Module]:
    """The last normalisation and the last linear layer that the network holds, where they are in float32.

    >>> network = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.Linear(3, 2))
    >>> last_layers(network) == [network[1], network[2]]
    True
    """
    parts = list(module.modules())
    last = [next((p for p in reversed(parts) if isinstance(p, kind)), None) for kind in (nn.LayerNorm, nn.Linear)]
    return [part for part in last if part is not None and {p.dtype for p in part.parameters()} == {torch.float32}]


@contextmanager
def in_float32(layers: Sequence[nn.Module]) -> Iterator[None]:
    """These take what they are given in float32, and answer so."""
    own = [vars(layer).get("forward") for layer in layers]
    try:
        for layer in layers:
            layer.forward = partial(_wide, layer.forward, next(layer.parameters()).device.type)
        yield
    finally:
        for layer, before in zip(layers, own, strict=True):
            if before is not None:
                layer.forward = before
            else:
                vars(layer).pop("forward", None)


def _wide(forward: Callable[..., Any], device: str, *given: Any, **named: Any) -> Any:
    def wide(each: Any) -> Any:
        return each.float() if isinstance(each, Tensor) else each

    with torch.autocast(device, enabled=False):
        return forward(*(wide(each) for each in given), **{name: wide(each) for name, each in named.items()})


def wide_weights(module: nn.Module) -> Standing:
    """Those in float32 that can do with less; not of what has statistics of its own, as BatchNorm."""
    spared = last_layers(module)
    return [
        (part, name, tensor)
        for part, name, tensor in weights_standing(module)
        if tensor.dtype == torch.float32
        and not any(part is layer for layer in spared)
        and not any(b.is_floating_point() for b in part.buffers(recurse=False))
    ]


def round_fixed(module: nn.Module) -> None:
    """Round the weights that have no gradients, for good: a network that is only asked needs no others."""
    for part, name, tensor in wide_weights(module):
        if not tensor.requires_grad:
            part._parameters[name] = nn.Parameter(tensor.to(torch.bfloat16), requires_grad=False)


@contextmanager
def halved(module: nn.Module) -> Iterator[None]:
    """The weights in bf16, differentiably; not of the last layers, nor of what has statistics of its own."""
    wide = wide_weights(module)
    free, fixed = ([each for each in wide if each[2].requires_grad is wanted] for wanted in (True, False))
    tensors = [tensor for _, _, tensor in free]
    rounded = [each for group in groups([t.nbytes for t in tensors]) for each in _Rounded.apply(*tensors[group])]
    rounded += _converted([tensor for _, _, tensor in fixed], torch.bfloat16)
    both = zip([*free, *fixed], rounded, strict=True)
    with in_float32(last_layers(module)), standing([(part, name, tensor) for (part, name, _), tensor in both]):
        yield


class _Rounded(torch.autograd.Function):
    """Many weights at once: one by one they are hundreds of small operations, as many as all the others of a step.

    Autograd comes to them last. All at once, their gradients would be there twice, in bf16 and in float32; of a group,
    those in bf16 are gone before the next.
    """

    @staticmethod
    def forward(ctx: Any, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        return tuple(_converted(weights, torch.bfloat16))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *slopes: Tensor | None) -> tuple[Tensor | None, ...]:  # noqa: ARG004
        wide = iter(_converted([slope for slope in slopes if slope is not None], torch.float32))
        return tuple(None if slope is None else next(wide) for slope in slopes)


def _converted(tensors: Sequence[Tensor], precision: torch.dtype) -> list[Tensor]:
    found = [torch.empty_like(tensor, dtype=precision) for tensor in tensors]
    if found:
        torch._foreach_copy_(found, list(tensors))
    return found
