"""The reference target: for samples."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from famr.errors import RequestError
from famr.losses.objective import at_least_float32
from famr.targets.base import Target, TargetInputs
from famr.targets.margins import margins


class ReferenceTarget(Target):
    """The original's prediction with the confidence it has on held-out images: for samples.

    A model that never saw a sample still classifies most of them correctly, as confidently as any held-out image.
    """

    @classmethod
    def build(cls, inputs: TargetInputs) -> Self:
        """See `Target.build`."""
        inputs.require_samples("reference")
        forget, held_out = inputs.forget, inputs.held_out
        if held_out is None or held_out.margins is None or not forget.labelled:
            raise RequestError(
                "The reference target needs labelled held-out images, or a sketch, and labelled forget images.",
                where="target",
                fix="Give the whole data, or use the tempered target.",
            )
        return cls(reference_target(forget.logits, forget.targets, held_out.margins, inputs.overshoot))


def reference_target(logits: Tensor, labels: Tensor, held_out: Tensor, overshoot: float = 0.0) -> Tensor:
    """softmax of the logits with the true class's log-odds replaced by those of held-out images, rank by rank.

    The least confident forget image gets the log-odds of the least confident held-out image, and so on up; none becomes
    more confident than it was. The remaining classes keep their proportions. With an overshoot κ the log-odds move
    1 + κ times as far, since a short run stops before it arrives.

    Args:
        logits: The original's on the forget set, (images, classes).
        labels: (images,).
        held_out: Log-odds of the true class on held-out images, any number of them.
        overshoot: κ.

    >>> z = torch.tensor([[5.0, 0.0], [9.0, 0.0]])
    >>> reference_target(z, torch.tensor([0, 0]), held_out=torch.tensor([0.0, 0.0])).round(decimals=2)
    tensor([[0.5000, 0.5000],
            [0.5000, 0.5000]])
    """
    own = margins(logits, labels)
    ranks = (own.argsort().argsort().to(own) + 0.5) / len(own)
    lowered = torch.minimum(torch.quantile(held_out.to(own), ranks), own)
    changed = at_least_float32(logits).clone()
    changed[torch.arange(len(labels)), labels] += (1 + overshoot) * (lowered - own)
    return torch.softmax(changed, dim=-1)
