"""What an update rule is: lines 6 and 7 of Alg. 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn

from famr.anchors import AnchorTerm


class UpdateRule(Protocol):
    """Moves θ by the forgetting gradient and the anchors."""

    uses_metric: ClassVar[bool]
    """Whether the weight anchor is the metric of the step and no penalty of J."""
    default_rate: ClassVar[float]
    """η where the user gives none."""
    function_strength: ClassVar[float]
    """λ of the function-space anchor where the user gives none."""

    def __init__(self, parameters: Sequence[nn.Parameter], anchors: Sequence[AnchorTerm]) -> None: ...

    def rate_at(self, rate: float, step: int, steps: int) -> float:
        """η of a step.

        Args:
            rate: The run's η.
            step: From 0.
            steps: Of the whole run.
        """
        ...

    def set_rate(self, rate: float) -> None:
        """Set η of the next step, in place, so that a recorded step sees it.

        Args:
            rate: η.
        """
        ...

    def step(self, loss: Tensor, gradient: Sequence[Tensor]) -> None:
        """Add the anchors' gradients and move θ, in place.

        Args:
            loss: L_forget of the batch.
            gradient: ∇L_forget, one tensor a parameter.
        """
        ...

    def state(self) -> dict[str, Tensor]:
        """What the rule remembers between steps."""
        ...

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """The inverse of `state`.

        Args:
            state: May hold other entries too.
        """
        ...


def with_anchors(
    gradient: Sequence[Tensor], parameters: Sequence[nn.Parameter], anchors: Sequence[AnchorTerm]
) -> list[Tensor]:
    """∇L_forget + Σ λ∇A: lines 5 and 6 of Alg. 1.

    Args:
        gradient: ∇L_forget.
        parameters: θ.
        anchors: A and λ of each.
    """
    total = list(gradient)
    for anchor, strength in anchors:
        pulls = anchor.gradient(parameters)
        with torch.no_grad():
            total = [g + strength * pull for g, pull in zip(total, pulls, strict=True)]
    return total
