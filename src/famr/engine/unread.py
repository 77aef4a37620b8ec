"""Speed: what nobody reads is not computed.

Many transformers answer from one token, the first. Behind the last attention nothing passes from one token to another,
so that all others go through the last layers for nothing. A layer that is given the first alone hands back one token;
added to the others it makes nonsense of them, and nobody reads them.

Which layers these are is seen from gradients: where the answer does not depend on a token its gradient is zero, to the
last bit. That is done only with networks that answer the same this way.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor, nn

from famr.engine.devices import Precision

NEAR: dict[Precision, float] = {"fp32": 1e-4, "bf16": 3e-2}
"""How far answers may lie apart, as a share of them: what is rounded in another order."""
AT_ONCE = 4
"""Layers that are asked about in one backward pass: those of one block of a transformer."""


@dataclass(frozen=True)
class Unread:
    """Layers that need not see all tokens, by name, and the seconds it took to find them."""

    layers: tuple[str, ...] = ()
    seconds: float = 0.0

    @contextmanager
    def spared(self, module: nn.Module) -> Iterator[None]:
        """These layers of a network see the first token alone, whatever it is asked."""
        handles = [module.get_submodule(name).register_forward_pre_hook(_first_token) for name in self.layers]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def unread(module: nn.Module, logits: Callable[[Tensor], Tensor], some: Tensor, precision: Precision) -> Unread:
    """The last layers of a network, as far back as only the first token of what they say is read.

    `logits` are its answers in that precision, `some` a few images to try it on.
    """
    begun = time.perf_counter()
    said, outputs = _heard(module, logits, some)
    found = [layer for layer, _ in takewhile(lambda each: _first_alone(each[1]), _slopes(said, outputs[::-1]))]
    tried = Unread(tuple(reversed(found)))
    if found and not _apart(said, module, logits, some, tried) <= NEAR[precision]:
        tried = Unread()
    return replace(tried, seconds=time.perf_counter() - begun)


def _slopes(said: Tensor, outputs: Sequence[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor | None]]:
    """The gradient of an answer in what each layer said, the last layers first: no further back than is asked for."""
    if not said.requires_grad:
        return
    weights = torch.linspace(1, 2, said.numel(), device=said.device).reshape(said.shape)
    answer = (said * weights).sum()
    for first in range(0, len(outputs), AT_ONCE):
        names, some = zip(*outputs[first : first + AT_ONCE], strict=True)
        slopes = torch.autograd.grad(answer, some, retain_graph=True, allow_unused=True)
        yield from zip(names, slopes, strict=True)


def _first_alone(slope: Tensor | None) -> bool:
    """Whether an answer depends on the first token, and on no other."""
    return slope is not None and not bool(slope[:, 1:].any()) and bool(slope[:, 0].any())


def _heard(
    module: nn.Module, logits: Callable[[Tensor], Tensor], some: Tensor
) -> tuple[Tensor, list[tuple[str, Tensor]]]:
    """The answers, and what each layer said about several tokens of each image, in the order of their calls."""
    outputs: list[tuple[str, Tensor]] = []

    def hear(name: str, _layer: nn.Module, _inputs: Any, output: Tensor) -> None:
        if output.ndim == 3 and output.requires_grad and output.shape[1] > 1:
            outputs.append((name, output))

    layers = [(name, part) for name, part in module.named_modules() if isinstance(part, nn.Linear)]
    handles = [layer.register_forward_hook(partial(hear, name)) for name, layer in layers]
    try:
        with torch.enable_grad():
            return logits(some), outputs
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def _apart(said: Tensor, module: nn.Module, logits: Callable[[Tensor], Tensor], some: Tensor, tried: Unread) -> float:
    """How far the answers then are from those before; infinitely, where a network needs all tokens that there were."""
    try:
        with tried.spared(module):
            return float((logits(some) - said).norm() / said.norm())
    except Exception:  # of whatever kind: some check the number of their tokens
        return math.inf


def _first_token(_layer: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return (inputs[0][:, :1].contiguous(), *inputs[1:])
