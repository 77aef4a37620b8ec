"""Which weights may change: those of the last layers, counted from the answer backwards, with or without the head.

Editing few, late layers keeps more: what early layers change runs through the whole network, where no metric of single
layers foresees it. And a head that stays as it was keeps forgetting from being a mere change of its bias: what is
forgotten is then forgotten in the features.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn


def call_order(module: nn.Module, forward: Callable[[], object]) -> dict[str, int]:
    """When each parameter is first used in a forward pass, as a rank; by the innermost called part it belongs to."""
    order: dict[nn.Module, int] = {}

    def note(part: nn.Module, _inputs: object) -> None:
        order.setdefault(part, len(order))

    handles = [part.register_forward_pre_hook(note) for part in module.modules()]
    try:
        with torch.no_grad():
            forward()
    finally:
        for handle in handles:
            handle.remove()

    def rank(name: str) -> int:
        parts = name.split(".")[:-1]
        within = [module.get_submodule(".".join(parts[:depth])) for depth in range(len(parts) + 1)]
        return max(order.get(part, 0) for part in within)

    return {name: rank(name) for name, _ in module.named_parameters()}


def edited_names(module: nn.Module, forward: Callable[[], object], share: float, head: bool) -> list[str]:
    """The parameters of the last `share` of the layers; the head, the last layer that is called, only if `head`.

    A network that is nothing but a head is edited there.
    """
    rank = call_order(module, forward)
    free = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    weights = sorted((name for name in free if module.get_parameter(name).ndim >= 2), key=rank.__getitem__)
    if not weights:
        return free
    head_rank = rank[weights[-1]]
    body = [name for name in weights if rank[name] != head_rank]
    if not body or share >= 1:
        return [name for name in free if head or not body or rank[name] != head_rank]
    first = rank[body[len(body) - max(1, math.floor(share * len(body)))]]
    return [name for name in free if rank[name] >= first and (head or rank[name] != head_rank)]


@contextmanager
def only(module: nn.Module, names: list[str]) -> Iterator[None]:
    """Have gradients for these parameters alone for a while."""
    before = {name: parameter.requires_grad for name, parameter in module.named_parameters()}
    chosen = set(names)
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name in chosen)
    try:
        yield
    finally:
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(before[name])
