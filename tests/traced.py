"""Captured steps on a CPU: a step is written down as operations on tensors, and then repeated."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx


class Traced:
    """As `Captured` on CUDA: by default the second step of a size is written down, and then repeated."""

    repeated = 0

    def __init__(self, step: Callable[..., Tensor], _device: torch.device, plain: int = 1) -> None:
        self._step, self._plain = step, plain
        self._graphs: dict[tuple[int, ...], Callable[..., Tensor]] = {}
        self._seen: dict[tuple[int, ...], int] = {}

    def __call__(self, given: Sequence[Tensor], sizes: tuple[int, ...], left: int) -> Tensor:
        assert left > 0
        if self._seen.setdefault(sizes, 0) < self._plain:
            self._seen[sizes] += 1
            return self._step(*given)
        if sizes in self._graphs:
            Traced.repeated += 1
            with torch.no_grad():  # the gradients are part of what was written down
                return self._graphs[sizes](*given)
        said: list[Tensor] = []  # it is taken as it is written down

        def step(*parts: Tensor) -> Tensor:
            said.append(self._step(*parts))
            return said[0]

        self._graphs[sizes] = make_fx(step)(*given)
        return said[0]
