"""Was the class forgotten in the head alone? Put the original's head back, its bias alone, or any bias at all."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import NamedTuple

import torch
from torch import Tensor

from famr.errors import CheckpointError
from famr.models import Classifier
from famr.models.layers import head_of

LOST = 0.01
"""The share of retained images that an attacker gives up to get the forgotten class back."""


def with_head_of(model: Classifier, donor: Classifier, *, bias_only: bool = False) -> Classifier:
    """A copy of `model` with the donor's head, or with the bias of it; both models stay as they are."""
    changed = model.copy()
    ours, theirs = head_of(changed), head_of(donor)
    same_bias = (ours.bias is None) == (theirs.bias is None)
    if ours.weight.shape != theirs.weight.shape or not same_bias:
        raise CheckpointError(
            f"The heads do not fit: {tuple(ours.weight.shape)} and {tuple(theirs.weight.shape)}.",
            where=f"{model.spec} and {donor.spec}",
            fix="Compare models of one architecture.",
        )
    with torch.no_grad():
        if not bias_only:
            ours.weight.copy_(theirs.weight)
        if ours.bias is not None:
            ours.bias.copy_(theirs.bias)
    return changed


class BestBias(NamedTuple):
    """The bias that an attacker adds to the forgotten classes, and which images are then right."""

    bias: float
    forget: Tensor
    retain: Tensor


def best_bias(
    forget: Tensor, forget_labels: Tensor, retain: Tensor, retain_labels: Tensor, classes: Collection[int]
) -> BestBias:
    """Add to the logits of the forgotten `classes` the most that costs at most `LOST` of the retained images.

    The cost is counted from a model that never answers these classes, so the outcome is the same whatever bias the
    model has: none can hide a class. It takes neither the original nor training. Where the class was never learned,
    no bias brings it back.

    >>> forget, retain = torch.tensor([[9.0, 4.0], [9.0, 2.0]]), torch.tensor([[9.0, 1.0], [9.0, 3.0]])
    >>> best_bias(forget, torch.tensor([1, 1]), retain, torch.tensor([0, 0]), classes=[1])
    BestBias(bias=6.0, forget=tensor([1., 0.]), retain=tensor([1., 1.]))
    """
    chosen = torch.zeros(retain.shape[1], dtype=torch.bool)
    chosen[list(classes)] = True

    def gap(logits: Tensor) -> Tensor:
        """How much must be added for a forgotten class to draw level."""
        kept = logits.masked_fill(chosen, -math.inf).amax(dim=1)
        return kept - logits.masked_fill(~chosen, -math.inf).amax(dim=1)

    inside = forget.masked_fill(~chosen, -math.inf).argmax(dim=1) == forget_labels
    outside = retain.masked_fill(chosen, -math.inf).argmax(dim=1) == retain_labels
    margins = gap(retain)[outside].sort().values
    allowed = math.floor(LOST * len(retain))
    bias = float(margins[allowed]) if allowed < len(margins) else math.inf
    return BestBias(bias, (inside & (gap(forget) < bias)).float(), (outside & (gap(retain) >= bias)).float())
