"""The masked target: for classes and concepts."""

from __future__ import annotations

from typing import ClassVar, Self

import torch
from torch import Tensor

from famr.errors import RequestError
from famr.losses.objective import at_least_float32
from famr.targets.base import Target, TargetInputs
from famr.targets.tempered import matching_temperature, tempered_target


class MaskedTarget(Target):
    """The original's prediction over the remaining classes, entropy-matched: for classes and concepts.

    q = softmax(z/τ) over the classes that are not forgotten. A model that never saw a class misclassifies all of its
    images, and is about as confident there as on held-out images that it misclassifies: τ matches that entropy.
    """

    has_temperature: ClassVar[bool] = True
    # Retrained models rank a class they never saw 88th and 84th of 100 (median on its own images, two classes of
    # CIFAR-100). γ = 0 leaves it at ranks 11 and 6; 0.01, 0.03 and 0.1 bring it to 75, 87 and 92, and cost 0.02 to 0.08
    # points of retained accuracy.
    default_demotion: ClassVar[float | None] = 0.03

    @classmethod
    def build(cls, inputs: TargetInputs) -> Self:
        """See `Target.build`."""
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
            held_out = inputs.require_held_out()
            wrong = held_out.entropy_when_wrong
            temperature = matching_temperature(logits, held_out.entropy if wrong is None else wrong)
        return cls(tempered_target(logits, temperature), temperature)


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
