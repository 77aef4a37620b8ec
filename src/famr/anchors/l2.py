"""The paper's anchor: ℓ₂ distance to the original weights [FAMR, Eq. (1)]."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from torch import Tensor, nn

from famr.anchors.base import AnchorInputs, WeightAnchor
from famr.losses.objective import l2_penalty


@dataclass(frozen=True, eq=False)
class L2Anchor(WeightAnchor):
    """ℓ₂ distance to the original weights (the paper): A = ½‖θ − θ₀‖².

    Attributes:
        original: θ₀.
    """

    original: Sequence[Tensor]

    strength_as_metric: ClassVar[float] = 0.0  # no strength changes the direction of the step
    strength_as_penalty: ClassVar[float] = 1e-4  # weak: the function-space anchor keeps more
    needs_whole_layers: ClassVar[bool] = False

    @classmethod
    def build(cls, inputs: AnchorInputs) -> Self:
        """See `WeightAnchor.build`."""
        return cls(inputs.original)

    def penalty(self, parameters: Sequence[nn.Parameter]) -> Tensor:
        """½‖θ − θ₀‖².

        Args:
            parameters: θ.
        """
        return l2_penalty(parameters, self.original)

    def gradient(self, parameters: Sequence[nn.Parameter]) -> Iterator[Tensor]:
        """θ − θ₀, one parameter after another, so that no second copy of all of them is made.

        Args:
            parameters: θ.
        """
        return (p.detach() - p0 for p, p0 in zip(parameters, self.original, strict=True))

    def precondition(self, gradient: Sequence[Tensor], strength: float) -> Sequence[Tensor]:
        """(1 + s)⁻¹ g: the same direction for every s.

        Args:
            gradient: g.
            strength: s.
        """
        return [g / (1 + strength) for g in gradient] if strength else gradient
