"""The paper's anchor: every weight is held alike [FAMR, Eq. (1)]."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from famr.losses.objective import l2_penalty


@dataclass(frozen=True, eq=False)
class L2Anchor:
    """A = ½‖θ − θ₀‖². Needs nothing but the original weights."""

    original: Sequence[Tensor]

    def penalty(self, parameters: Sequence[nn.Parameter]) -> Tensor:
        """½‖θ − θ₀‖²."""
        return l2_penalty(parameters, self.original)

    def gradient(self, parameters: Sequence[nn.Parameter]) -> Iterator[Tensor]:
        """θ − θ₀, one parameter after another, so that no second copy of all of them is made."""
        return (p.detach() - p0 for p, p0 in zip(parameters, self.original, strict=True))

    def precondition(self, gradient: Sequence[Tensor], strength: float) -> Sequence[Tensor]:
        """(1 + s)⁻¹ g: the same direction for every s."""
        return [g / (1 + strength) for g in gradient] if strength else gradient
