"""The masked target: for classes and concepts."""

from __future__ import annotations

import torch
from torch import Tensor

from famr.errors import RequestError
from famr.losses.objective import at_least_float32
from famr.targets.base import Target, TargetInputs
from famr.targets.tempered import matching_temperature, require_held_out, tempered_target


def masked(inputs: TargetInputs) -> Target:
    """The original's prediction over the remaining classes, entropy-matched: for classes and concepts.

    q = softmax(z/τ) over the classes that are not forgotten. A model that never saw a class misclassifies all of its
    images, and is about as confident there as on held-out images that it misclassifies: τ matches that entropy.

    Args:
        inputs: Reads `forget`, `forgotten`, and `temperature` or `held_out`.

    Raises:
        RequestError: No class is forgotten whole, or all are; or τ cannot be calibrated.
    """
    if not 0 < len(inputs.forgotten) < inputs.classes:
        raise RequestError(
            f"The masked target removes the forgotten classes; this request forgets {len(inputs.forgotten)} of "
            f"{inputs.classes} whole.",
            where="target",
            fix="Use the tempered or the reference target for samples.",
        )
    logits = without(inputs.forget.logits, torch.tensor(inputs.forgotten))
    temperature = inputs.temperature
    if temperature is None:
        held_out = require_held_out(inputs)
        wrong = held_out.entropy_when_wrong
        temperature = matching_temperature(logits, held_out.entropy if wrong is None else wrong)
    return Target(tempered_target(logits, temperature), temperature)


def without(logits: Tensor, forgotten: Tensor) -> Tensor:
    """Logits with −∞ for the forgotten classes.

    Args:
        logits: (images, classes).
        forgotten: Class indices.
    """
    return at_least_float32(logits).index_fill(-1, forgotten, -torch.inf)


def masked_target(logits: Tensor, forgotten: Tensor, temperature: float) -> Tensor:
    """softmax(z/τ) over the remaining classes.

    Args:
        logits: z, (images, classes).
        forgotten: Class indices.
        temperature: τ.

    >>> masked_target(torch.tensor([[9.0, 1.0, 1.0]]), torch.tensor([0]), temperature=1.0)
    tensor([[0.0000, 0.5000, 0.5000]])
    """
    return tempered_target(without(logits, forgotten), temperature)
