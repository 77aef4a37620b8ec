"""The membership attack of MIA-efficacy on one model: what it calls the forget set, and whether it works at all.

The attack learns to tell retained training images (members) from test images (non-members) by the probability of the
true class. Where a model treats both alike, as one that hardly overfits does, it learns nothing: what it then calls the
forget set is as random as a coin flip for all images at once. So each training of it is tried on members and
non-members that it did not learn from.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from famr.audit.estimate import BATCH, CONFIDENCE, RESAMPLES, Estimate
from famr.audit.roc import FEWEST
from famr.data.loaders import order
from famr.metrics.membership import predict_non_members
from famr.metrics.predictions import Predictions

MEMBERSHIP_DRAWS = 20
"""Times that the membership attack is trained anew: one draw may go either way on predictions it has never seen."""
MEMBERSHIP_IMAGES = 1000
"""The most members, and non-members, that one draw learns from, and the most of each that it is tried on."""

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class MembershipCalls:
    """1 where a draw of the attack calls an image a non-member, 0 where it calls it a member.

    Attributes:
        forget: Of the forget set, (draws, images).
        members: Of retained training images, NaN where the draw was not tried on the image, (draws, images).
        non_members: The same of test images.
    """

    forget: Tensor
    members: Tensor
    non_members: Tensor


def membership_calls(forget: Predictions, retain: Predictions, test: Predictions, seed: int) -> MembershipCalls:
    """Train the attack `MEMBERSHIP_DRAWS` times.

    Each draw learns from a random half of the members and of the non-members, or less: halves differ from one another
    by as much as two samples of the whole size would, so the draws show how far the outcome depends on the sample. It
    is tried on as many others, as far as there are so many.

    Args:
        forget: Predictions to attack, on the forget set.
        retain: Predictions on members.
        test: Predictions on non-members.
        seed: Of the first draw; each further draw has the next seed.
    """
    members, non_members, attacked = (_true_probability(each) for each in (retain, test, forget))
    count = max(1, min(MEMBERSHIP_IMAGES, len(members) // 2, len(non_members) // 2))

    def draw(number: int) -> tuple[Tensor, Tensor, Tensor]:
        drawn = [order(len(kind), seed + number) for kind in (members, non_members)]
        known, unknown = (kind[own[:count]] for kind, own in zip((members, non_members), drawn, strict=True))
        tried = [own[count : 2 * count] for own in drawn]
        queries = torch.cat([attacked, members[tried[0]], non_members[tried[1]]])
        called = predict_non_members(known, unknown, queries, seed + number)
        of_forget, of_members, of_non_members = called.tensor_split([len(attacked), len(attacked) + len(tried[0])])
        return of_forget, at(tried[0], of_members, len(members)), at(tried[1], of_non_members, len(non_members))

    def at(images: Tensor, calls: Tensor, count: int) -> Tensor:
        return torch.full((count,), torch.nan, dtype=calls.dtype).index_copy(0, images, calls)

    with ThreadPoolExecutor() as threads:
        draws = threads.map(draw, range(MEMBERSHIP_DRAWS))
        return MembershipCalls(*(torch.stack(kind) for kind in zip(*draws, strict=True)))


def membership_auc(members: Tensor, non_members: Tensor, seed: int = 0) -> Estimate:
    """AUC of the attack's calls on images that it did not learn from, over all draws: ½ (TPR + 1 − FPR).

    Of two calls, "member" and "non-member", the AUC is balanced accuracy: 0.5 is guessing. The percentile bootstrap
    resamples draws and images.

    Args:
        members: As in `MembershipCalls`, (draws, images).
        non_members: As in `MembershipCalls`, (draws, images').
        seed: Of the bootstrap.

    >>> members, non_members = torch.zeros(2, 20), torch.ones(2, 20)
    >>> membership_auc(members, non_members)
    Estimate(value=1.0, low=1.0, high=1.0, why_not=None)
    """
    kinds = [kind[:, ~kind.isnan().all(dim=0)].double().cpu().numpy() for kind in (members, non_members)]
    if min(kind.shape[1] for kind in kinds) < FEWEST:
        return Estimate.not_available("too few retained or test images to see whether the membership attack works")
    of_members, of_non_members = kinds
    value = 0.5 + (np.nanmean(of_non_members) - np.nanmean(of_members)) / 2
    generator = np.random.default_rng(seed)
    replicates = np.concatenate(
        [
            0.5 + (_resampled(of_non_members, draws, generator) - _resampled(of_members, draws, generator)) / 2
            for draws in _resampled_draws(len(of_members), generator)
        ]
    )
    miss = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(replicates, [miss, 100 - miss])
    return Estimate(float(value), float(low), float(high))


def why_powerless(auc: Estimate | None) -> str | None:
    """Why the attack says nothing about a model; None where it tells members from non-members better than chance.

    Args:
        auc: Of the attack on the model, by `membership_auc`; None where it was not measured.

    >>> why_powerless(Estimate(0.6, 0.55, 0.65))
    >>> why_powerless(Estimate(0.51, 0.49, 0.53))
    'the attack does not tell retained training images from test images better than chance: AUC 0.510 [0.490, 0.530]'
    """
    ends = None if auc is None else auc.ends()
    if auc is None or ends is None:
        return "it was not measured whether the attack works" if auc is None else auc.why_not
    if ends[0] > 0.5:
        return None
    return (
        "the attack does not tell retained training images from test images better than chance: "
        f"AUC {auc.value:.3f} [{ends[0]:.3f}, {ends[1]:.3f}]"
    )


def _resampled_draws(count: int, generator: np.random.Generator) -> Iterator[Array]:
    """How often each draw of the attack is in a bootstrap sample, (samples, draws), in batches."""
    for _ in range(RESAMPLES // BATCH):
        yield generator.multinomial(count, np.full(count, 1 / count), size=BATCH).astype(float)


def _resampled(
    calls: Array,
    draws: Array,
    generator: np.random.Generator,
) -> Array:
    """The share of "non-member" over the draws of bootstrap samples and resampled images, (samples,)."""
    tried, images = ~np.isnan(calls), calls.shape[1]
    weights = np.stack(
        [np.bincount(row, minlength=images) for row in generator.integers(images, size=(len(draws), images))]
    )
    called, counted = ((draws @ part * weights).sum(axis=1) for part in (np.nan_to_num(calls), tried.astype(float)))
    share: Array = called / counted
    return share


def _true_probability(predictions: Predictions) -> Tensor:
    return torch.softmax(predictions.logits, dim=-1).gather(-1, predictions.targets[:, None])[:, 0]
