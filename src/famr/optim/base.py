"""The interface of update rules: lines 6 and 7 of Alg. 1."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from famr.anchors import AnchorTerm


class UpdateRule(ABC):
    """Moves θ by the forgetting gradient and the anchors.

    Args:
        parameters: θ.
        anchors: A and λ of each; the weight anchor first.

    Attributes:
        uses_metric: Whether the weight anchor is the metric of the step and not a penalty of J.
        default_rate: η where the user gives none.
        function_strength: λ of the function-space anchor where the user gives none.
    """

    uses_metric: ClassVar[bool] = False
    default_rate: ClassVar[float] = 1e-4  # the paper's
    function_strength: ClassVar[float]

    def __init__(self, parameters: Sequence[nn.Parameter], anchors: Sequence[AnchorTerm]) -> None:
        self._parameters, self._anchors = parameters, anchors
        self._rate = torch.zeros((), device=parameters[0].device)

    def rate_at(self, rate: float, step: int, steps: int) -> float:  # noqa: ARG002
        """η of a step; constant by default.

        Args:
            rate: The run's η.
            step: Steps taken so far.
            steps: Steps of the whole run.
        """
        return rate

    def set_rate(self, rate: float) -> None:
        """Set η of the next step, in place, so that a recorded step reads the new value.

        Args:
            rate: η.
        """
        self._rate.fill_(rate)

    @abstractmethod
    def step(self, loss: Tensor, gradient: Sequence[Tensor]) -> None:
        """Add the anchors' gradients and move θ, in place.

        Args:
            loss: L_forget of the batch.
            gradient: ∇L_forget, one tensor a parameter.
        """

    def with_anchors(self, gradient: Sequence[Tensor]) -> list[Tensor]:
        """g_forget + g_anchor = ∇L_forget + Σ λ∇A.

        Args:
            gradient: ∇L_forget, one tensor a parameter.
        """
        total = list(gradient)
        for anchor, strength in self._anchors:
            pulls = anchor.gradient(self._parameters)
            with torch.no_grad():
                total = [g + strength * pull for g, pull in zip(total, pulls, strict=True)]
        return total

    def state(self) -> dict[str, Tensor]:
        """The state that the rule keeps between steps, by name."""
        return {}

    def load_state(self, state: Mapping[str, Tensor]) -> None:  # noqa: ARG002
        """The inverse of `state`.

        Args:
            state: May hold other entries too.
        """
        return
