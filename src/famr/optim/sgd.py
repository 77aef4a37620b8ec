"""Plain SGD: the update of Alg. 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from famr.anchors import AnchorTerm
from famr.optim.base import with_anchors


class SGD:
    """Plain SGD (the paper): θ ← θ − η(g_forget + g_anchor) [FAMR, Alg. 1], with a constant η.

    Args:
        parameters: θ.
        anchors: A and λ of each.
    """

    uses_metric: ClassVar[bool] = False
    default_rate: ClassVar[float] = 1e-4
    function_strength: ClassVar[float] = 1.0

    def __init__(self, parameters: Sequence[nn.Parameter], anchors: Sequence[AnchorTerm]) -> None:
        self._parameters, self._anchors = parameters, anchors
        self._rate = torch.zeros((), device=parameters[0].device, dtype=torch.float64)
        if self._rate.device.type == "mps":  # which has no double precision
            self._rate = self._rate.float()

    def rate_at(self, rate: float, step: int, steps: int) -> float:  # noqa: ARG002, D102
        return rate

    def set_rate(self, rate: float) -> None:  # noqa: D102
        self._rate.fill_(rate)

    def step(self, loss: Tensor, gradient: Sequence[Tensor]) -> None:  # noqa: ARG002, D102
        total = with_anchors(gradient, self._parameters, self._anchors)  # Alg. 1, line 6
        with torch.no_grad():
            for parameter, g in zip(self._parameters, total, strict=True):
                parameter.sub_(self._rate * g)  # Alg. 1, line 7

    def state(self) -> dict[str, Tensor]:  # noqa: D102
        return {}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """There is none."""
