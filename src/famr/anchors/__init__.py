"""What holds the model in place while it forgets: A(θ, θ₀) in J(θ) = L_forget(θ) + Σ λ·A(θ, θ₀).

An anchor gives its penalty and its gradient in θ, as tensors, without leaving a graph behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor, nn

from famr.anchors.fisher import FisherAnchor
from famr.anchors.function import FunctionAnchor
from famr.anchors.kfac import KFACAnchor
from famr.anchors.l2 import L2Anchor

__all__ = ["Anchor", "AnchorTerm", "FisherAnchor", "FunctionAnchor", "KFACAnchor", "L2Anchor", "WeightAnchor"]


class Anchor(Protocol):
    """A(θ, θ₀): zero at θ₀, nowhere negative."""

    def penalty(self, parameters: Sequence[nn.Parameter]) -> Tensor:
        """A(θ, θ₀) over everything the anchor knows."""
        ...

    def gradient(self, parameters: Sequence[nn.Parameter]) -> Iterable[Tensor]:
        """∇A(θ, θ₀), or an unbiased estimate of it; one tensor a parameter, to be read once."""
        ...


@runtime_checkable
class WeightAnchor(Anchor, Protocol):
    """An anchor that is a metric of the weights, A = ½ΔᵀFΔ."""

    @property
    def original(self) -> Sequence[Tensor]:
        """θ₀."""
        ...

    def precondition(self, gradient: Sequence[Tensor], strength: float) -> Sequence[Tensor]:
        """(I + sF)⁻¹ g, with s = `strength`."""
        ...


class AnchorTerm(NamedTuple):
    """An anchor and its strength λ."""

    anchor: Anchor
    strength: float
