"""The paper's anchor: every weight is held alike [FAMR, Eq. (1)]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from famr.objective import l2_penalty


@dataclass(frozen=True, eq=False)
class L2Anchor:
    """A = ½‖θ − θ₀‖². Needs nothing but the original weights."""

    original: Sequence[Tensor]

    def penalty(self, parameters: Sequence[nn.Parameter]) -> Tensor:
        """½‖θ − θ₀‖²."""
        return l2_penalty(parameters, self.original)

    @torch.no_grad()
    def gradient(self, parameters: Sequence[nn.Parameter]) -> Sequence[Tensor]:
        """θ − θ₀."""
        return [parameter - start for parameter, start in zip(parameters, self.original, strict=True)]

    def precondition(self, gradient: Sequence[Tensor], strength: float) -> Sequence[Tensor]:
        """(1 + s)⁻¹ g: the same direction for every s."""
        return [g / (1 + strength) for g in gradient]
