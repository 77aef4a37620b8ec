"""The tempered target: for samples without labels."""

from __future__ import annotations

from typing import ClassVar, Self

import torch
from torch import Tensor

from famr.losses.objective import at_least_float32
from famr.metrics.forgetting import entropy
from famr.targets.base import Target, TargetInputs

COLDEST, HOTTEST = 1 / 64, 64.0


class TemperedTarget(Target):
    """The original's prediction, entropy-matched to held-out images: for samples without labels.

    q = softmax(z/τ), with τ such that the mean entropy of q is the original's on held-out images.
    """

    has_temperature: ClassVar[bool] = True

    @classmethod
    def build(cls, inputs: TargetInputs) -> Self:
        """See `Target.build`."""
        inputs.require_samples("tempered")
        logits, temperature = inputs.forget.logits, inputs.temperature
        if temperature is None:
            temperature = matching_temperature(logits, inputs.require_held_out().entropy)
        return cls(tempered_target(logits, temperature), temperature)


def tempered_target(logits: Tensor, temperature: float) -> Tensor:
    """softmax(z/τ): sharper below τ = 1, softer above.

    Args:
        logits: z, (images, classes).
        temperature: τ.

    >>> tempered_target(torch.tensor([[0.0, 2.0]]), temperature=2.0)
    tensor([[0.2689, 0.7311]])
    """
    return torch.softmax(at_least_float32(logits) / temperature, dim=-1)


def matching_temperature(logits: Tensor, mean_entropy: float) -> float:
    """τ for which softmax(z/τ) has a given mean entropy; the nearest in [1/64, 64] where no τ has.

    The entropy of each image grows with τ, so that bisection finds it.

    Args:
        logits: z, (images, classes).
        mean_entropy: In nats.

    >>> z, half = torch.tensor([[0.0, 1.0]]), torch.tensor([[0.0, 0.5]])
    >>> round(matching_temperature(z, mean_entropy=float(entropy(half))), 4)
    2.0
    """
    low, high = torch.tensor(COLDEST).log(), torch.tensor(HOTTEST).log()
    while (middle := (low + high) / 2) not in (low, high):  # until no number lies between
        if float(entropy(at_least_float32(logits) / middle.exp()).mean()) < mean_entropy:
            low = middle
        else:
            high = middle
    return float(middle.exp())
