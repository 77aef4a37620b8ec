"""The natural step: the anchor is the metric of the step, and the loss itself gives its length.

    θ ← θ − η · L/(gᵀPg) · P g          g = ∇L_forget + Σ λ∇A of the further anchors,  P = (I + sF)⁻¹

P shrinks the directions on which retained predictions depend (F is their Fisher information, s the strength) and leaves
the others free: the natural gradient of the retained predictions. L/(gᵀPg) is the step after which L would be zero if
it were linear [Polyak]; so η = 1/2 means half of it, whatever the network's scale. s = 0 is the plain gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from famr.anchors import AnchorTerm, WeightAnchor
from famr.errors import RequestError
from famr.optim.base import UpdateRule
from famr.optim.schedules import cosine

FLATTEST = 1e-12
"""The least gᵀPg that is divided by."""


class Natural(UpdateRule):
    """A step in the metric of the weight anchor, whose length follows from the loss; η falls along a cosine.

    Args:
        parameters: θ.
        anchors: A weight anchor first, which gives the metric; then further anchors.

    Raises:
        RequestError: The first anchor is not a metric of the weights.
    """

    uses_metric: ClassVar[bool] = True
    default_rate: ClassVar[float] = 0.5
    function_strength: ClassVar[float] = 5.0

    def __init__(self, parameters: Sequence[nn.Parameter], anchors: Sequence[AnchorTerm]) -> None:
        (metric, strength), *further = anchors
        if not isinstance(metric, WeightAnchor):
            raise RequestError("The natural step needs an anchor of the weights first.", where="optimiser")
        super().__init__(parameters, further)
        self._metric, self._strength = metric, strength

    def rate_at(self, rate: float, step: int, steps: int) -> float:
        """See `UpdateRule.rate_at`."""
        return rate * cosine(step, steps)

    def step(self, loss: Tensor, gradient: Sequence[Tensor]) -> None:
        """See `UpdateRule.step`."""
        total = self.with_anchors(gradient)  # g
        with torch.no_grad():
            direction = self._metric.precondition(total, self._strength)  # P g
            length = self._rate * step_length(loss, total, direction)
            for parameter, d in zip(self._parameters, direction, strict=True):
                parameter.sub_(length * d)


@torch.no_grad()
def step_length(loss: Tensor, gradient: Sequence[Tensor], direction: Sequence[Tensor]) -> Tensor:
    """L/(gᵀPg): where the loss would reach zero along −P g, were it linear.

    Args:
        loss: L.
        gradient: g.
        direction: P g.

    >>> g = [torch.tensor([3.0, 4.0])]
    >>> step_length(torch.tensor(5.0), g, g)
    tensor(0.2000)
    """
    decrease = torch.stack([(g * d).sum() for g, d in zip(gradient, direction, strict=True)]).sum()
    return loss.detach() / decrease.clamp(min=FLATTEST)
