"""Plain SGD: the update of Alg. 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from famr.anchors import AnchorTerm
from famr.optim.base import UpdateRule


class SGD(UpdateRule):
    """Plain SGD (the paper): θ ← θ − η(g_forget + g_anchor) [FAMR, Alg. 1], with a constant η.

    Args:
        parameters: θ.
        anchors: A and λ of each.
    """

    function_strength: ClassVar[float] = 1.0

    def __init__(self, parameters: Sequence[nn.Parameter], anchors: Sequence[AnchorTerm]) -> None:
        super().__init__(parameters, anchors)
        if self._rate.device.type != "mps":  # which has no double precision
            self._rate = self._rate.double()

    def step(self, loss: Tensor, gradient: Sequence[Tensor]) -> None:  # noqa: ARG002
        """See `UpdateRule.step`."""
        total = self.with_anchors(gradient)  # Alg. 1, line 6
        with torch.no_grad():
            for parameter, g in zip(self._parameters, total, strict=True):
                parameter.sub_(self._rate * g)  # Alg. 1, line 7
