"""Adam on the gradient of Alg. 1, with the anchors inside or outside of its scaling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from famr.anchors import AnchorTerm
from famr.optim.base import UpdateRule
from famr.optim.schedules import cosine, set_learning_rate
from famr.optim.state import load_optimiser_tensors, optimiser_tensors

BETAS = (0.9, 0.99)
"""Adam's memory of the gradient and of its square: the square is forgotten sooner than usual, as runs are short."""
WARM_UP = 0.1
"""The share of the steps in which η rises: at first Adam knows little about the gradient."""


class Adam(UpdateRule):
    """Adam on g_forget + g_anchor; η rises for a tenth of the steps and falls along a cosine.

    There is no weight decay, which would pull to 0 what the anchor pulls to θ₀.

    Args:
        parameters: θ.
        anchors: A and λ of each.
    """

    function_strength: ClassVar[float] = 2.0

    def __init__(self, parameters: Sequence[nn.Parameter], anchors: Sequence[AnchorTerm]) -> None:
        super().__init__(parameters, anchors)
        if self._rate.device.type == "cuda":  # η is read from the device, so that a recorded step sees it change
            self._adam = torch.optim.Adam(parameters, lr=self._rate, betas=BETAS, capturable=True)
        else:
            self._adam = torch.optim.Adam(parameters, lr=1.0, betas=BETAS)

    def rate_at(self, rate: float, step: int, steps: int) -> float:
        """See `UpdateRule.rate_at`."""
        return rate * min(1.0, (step + 1) / (WARM_UP * steps)) * cosine(step, steps)

    def set_rate(self, rate: float) -> None:
        """See `UpdateRule.set_rate`."""
        super().set_rate(rate)
        set_learning_rate(self._adam, rate)

    def step(self, loss: Tensor, gradient: Sequence[Tensor]) -> None:  # noqa: ARG002
        """See `UpdateRule.step`."""
        self._move(self.with_anchors(gradient))

    def _move(self, gradient: Sequence[Tensor]) -> None:
        for parameter, g in zip(self._parameters, gradient, strict=True):
            parameter.grad = g
        self._adam.step()

    def state(self) -> dict[str, Tensor]:
        """See `UpdateRule.state`."""
        return optimiser_tensors(self._adam)

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """See `UpdateRule.load_state`."""
        load_optimiser_tensors(self._adam, state)


class AdamW(Adam):
    """Adam on g_forget alone; anchors are decoupled as AdamW's weight decay is: θ ← θ − ηλ∇A.

    Its stationary points are then not those of [FAMR, Eq. (6)].

    Args:
        parameters: θ.
        anchors: A and λ of each.
    """

    def step(self, loss: Tensor, gradient: Sequence[Tensor]) -> None:  # noqa: ARG002
        """See `UpdateRule.step`."""
        for anchor, strength in self._anchors:
            pulls = anchor.gradient(self._parameters)
            with torch.no_grad():
                for parameter, pull in zip(self._parameters, pulls, strict=True):
                    parameter.sub_(self._rate * strength * pull)
        self._move(gradient)
