"""Attacks on the head alone: transplant the original's head or bias, or shift the bias of the forgotten classes."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import NamedTuple

import torch
from torch import Tensor

from famr.errors import CheckpointError
from famr.models import Classifier
from famr.models.layers import head_of

ACCEPTED_LOSS = 0.01
"""Retained accuracy that an attacker gives up to recover the forgotten class."""
RESAMPLED_AT_ONCE = 200
"""Bootstrap samples in memory at once."""


def with_head_of(model: Classifier, donor: Classifier, *, bias_only: bool = False) -> Classifier:
    """A copy of a model with the head of another.

    Args:
        model: Is not changed.
        donor: Of the same architecture.
        bias_only: Take the donor's bias alone.

    Raises:
        CheckpointError: For heads of different shapes.
    """
    changed = model.copy()
    head, donor_head = head_of(changed), head_of(donor)
    same_bias = (head.bias is None) == (donor_head.bias is None)
    if head.weight.shape != donor_head.weight.shape or not same_bias:
        raise CheckpointError(
            f"The heads do not fit: {tuple(head.weight.shape)} and {tuple(donor_head.weight.shape)}.",
            where=f"{model.spec} and {donor.spec}",
            fix="Compare models of one architecture.",
        )
    with torch.no_grad():
        if not bias_only:
            head.weight.copy_(donor_head.weight)
        if head.bias is not None:
            head.bias.copy_(donor_head.bias)
    return changed


class BestBias(NamedTuple):
    """The bias that an attacker adds to the forgotten classes, and which images are then classified correctly.

    Attributes:
        bias: Added to the logits of the forgotten classes.
        forget: 1 or 0, (forget images,).
        retain: 1 or 0, (retained images,).
    """

    bias: float
    forget: Tensor
    retain: Tensor


class BiasTies(NamedTuple):
    """At which bias each image changes sides.

    Attributes:
        forget: Above this bias a forget image is classified correctly; +∞: at none, (forget images,).
        retain: Up to this bias a retained image is; NaN where it is wrong without the forgotten classes, and cannot be
            lost: NaN is sorted behind all others, (retained images,).
    """

    forget: Tensor
    retain: Tensor


def bias_ties(
    forget: Tensor, forget_labels: Tensor, retain: Tensor, retain_labels: Tensor, classes: Collection[int]
) -> BiasTies:
    """What must be added to the logits of the forgotten classes for each image to change sides.

    Args:
        forget: Logits on forget images, (forget images, classes).
        forget_labels: (forget images,).
        retain: Logits on retained images, (retained images, classes).
        retain_labels: (retained images,).
        classes: Indices of the forgotten classes.
    """
    forgotten = torch.zeros(retain.shape[1], dtype=torch.bool)
    forgotten[list(classes)] = True

    def bias_to_tie(logits: Tensor) -> Tensor:
        """What must be added for the best forgotten class to equal the best remaining one, (images,)."""
        remaining = logits.masked_fill(forgotten, -math.inf).amax(dim=1)
        return remaining - logits.masked_fill(~forgotten, -math.inf).amax(dim=1)

    right_among_forgotten = forget.masked_fill(~forgotten, -math.inf).argmax(dim=1) == forget_labels
    right_among_remaining = retain.masked_fill(forgotten, -math.inf).argmax(dim=1) == retain_labels
    return BiasTies(
        bias_to_tie(forget).masked_fill(~right_among_forgotten, math.inf),
        bias_to_tie(retain).masked_fill(~right_among_remaining, math.nan),
    )


def best_bias(ties: BiasTies) -> BestBias:
    """The largest b added to the logits of the forgotten classes that costs at most `ACCEPTED_LOSS` of accuracy.

    The cost is counted from a model that never predicts these classes, so the outcome does not depend on the bias the
    model has: none can hide a class. The attack takes neither the original nor training. Where the class was never
    learned, no bias brings it back.

    Args:
        ties: Of the model.

    >>> forget, retain = torch.tensor([[9.0, 4.0], [9.0, 2.0]]), torch.tensor([[9.0, 1.0], [9.0, 3.0]])
    >>> best_bias(bias_ties(forget, torch.tensor([1, 1]), retain, torch.tensor([0, 0]), classes=[1]))
    BestBias(bias=6.0, forget=tensor([1., 0.]), retain=tensor([1., 1.]))
    """
    bias = float(_set_by(ties.retain))
    return BestBias(bias, (ties.forget < bias).float(), (ties.retain >= bias).float())


def recovered_by_resampled_bias(ties: BiasTies, samples: int, seed: int) -> Tensor:
    """Forget accuracy under the best bias, for bootstrap samples of the retained images and of the forget images.

    The bias is set by the few retained images that it costs: with other retained images it would be another one, and
    with it all hits change at once. Models with the same images are resampled alike.

    Args:
        ties: Of the model.
        samples: How many.
        seed: Of the resampling.

    Returns:
        (samples,), as doubles.
    """
    generator = torch.Generator().manual_seed(seed)
    forget, retain = (each.double().cpu() for each in ties)

    def resampled(values: Tensor, count: int) -> Tensor:
        return values[torch.randint(len(values), (count, len(values)), generator=generator)]

    shares = []
    for count in [RESAMPLED_AT_ONCE] * (samples // RESAMPLED_AT_ONCE) + [samples % RESAMPLED_AT_ONCE]:
        bias = _set_by(resampled(retain, count))
        shares.append((resampled(forget, count) < bias[:, None]).double().mean(dim=1))
    return torch.cat(shares)


def _set_by(ties: Tensor) -> Tensor:
    """The bias that retained images set: the lowest tie but for those that may be lost, (…, images) → (…,)."""
    lost = math.floor(ACCEPTED_LOSS * ties.shape[-1])
    return ties.kthvalue(lost + 1, dim=-1).values.nan_to_num(math.inf, posinf=math.inf, neginf=-math.inf)
