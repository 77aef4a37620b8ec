"""The tempered target: for samples without labels."""

from __future__ import annotations

import torch
from torch import Tensor

from famr.errors import RequestError
from famr.losses.objective import at_least_float32
from famr.metrics.forgetting import entropy
from famr.targets.base import HeldOutStatistics, Target, TargetInputs

COLDEST, HOTTEST = 1 / 64, 64.0


def tempered(inputs: TargetInputs) -> Target:
    """The original's prediction, entropy-matched to held-out images: for samples without labels.

    q = softmax(z/τ), with τ such that the mean entropy of q is the original's on held-out images.

    Args:
        inputs: Reads `forget`, and `temperature` or `held_out`.

    Raises:
        RequestError: The request forgets whole classes, or τ cannot be calibrated.
    """
    inputs.require_samples("tempered")
    logits = inputs.forget.logits
    if inputs.temperature is not None:
        return Target(tempered_target(logits, inputs.temperature), inputs.temperature)
    temperature = matching_temperature(logits, require_held_out(inputs).entropy)
    return Target(tempered_target(logits, temperature), temperature)


def tempered_target(logits: Tensor, temperature: float) -> Tensor:
    """softmax(z/τ): sharper below τ = 1, softer above.

    Args:
        logits: z, (images, classes).
        temperature: τ.

    >>> tempered_target(torch.tensor([[0.0, 2.0]]), temperature=2.0)
    tensor([[0.2689, 0.7311]])
    """
    return torch.softmax(at_least_float32(logits) / temperature, dim=-1)


def matching_temperature(logits: Tensor, wanted: float) -> float:
    """τ for which the mean entropy of softmax(z/τ) is `wanted`; the nearest in [1/64, 64] where none is.

    The entropy of each image grows with τ, so that bisection finds it.

    Args:
        logits: z, (images, classes).
        wanted: In nats.

    >>> round(matching_temperature(torch.tensor([[0.0, 1.0]]), wanted=float(entropy(torch.tensor([[0.0, 0.5]])))), 4)
    2.0
    """
    low, high = torch.tensor(COLDEST).log(), torch.tensor(HOTTEST).log()
    while (middle := (low + high) / 2) not in (low, high):  # until no number lies between
        if float(entropy(at_least_float32(logits) / middle.exp()).mean()) < wanted:
            low = middle
        else:
            high = middle
    return float(middle.exp())


def require_held_out(inputs: TargetInputs) -> HeldOutStatistics:
    """The held-out statistics.

    Args:
        inputs: What the run has.

    Raises:
        RequestError: There are none, and no temperature was given.
    """
    if inputs.held_out is None:
        raise RequestError(
            "Without held-out images or a sketch the temperature of the target cannot be chosen.",
            where="temperature",
            fix="Give one, e.g. 0.6.",
        )
    return inputs.held_out
