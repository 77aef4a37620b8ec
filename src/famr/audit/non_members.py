"""Non-members that are as hard as the members of a membership attack.

Against easier or harder ones an attack finds hardness, not membership. For a forgotten class they are held-out images
of it; for samples, held-out images with nearly the same score under a reference model. Whether it worked is seen under
another retrained model that saw neither: there the AUC of the two sets must be 0.5.
"""

from __future__ import annotations

from bisect import bisect_left

import torch
from torch import Tensor

from famr.audit.roc import AttackScores, Interval, roc_summary
from famr.data.loaders import order
from famr.errors import RequestError


def match_one_to_one(members: Tensor, candidates: Tensor, seed: int = 0) -> Tensor:
    """For each member the candidate with the nearest score, without replacement.

    Members choose in a random order, so that none of them is favoured.

    Args:
        members: Scores, (members,).
        candidates: Scores of at least as many others, (candidates,).
        seed: Of the order.

    Returns:
        Indices of candidates, each at most once, (members,).

    Raises:
        RequestError: With fewer candidates than members.

    >>> match_one_to_one(torch.tensor([0.1, 0.9]), torch.tensor([0.8, 5.0, 0.2]))
    tensor([2, 0])
    """
    if len(candidates) < len(members):
        raise RequestError(
            f"{len(members)} members cannot be matched one to one with {len(candidates)} candidates.",
            where="non-members",
            fix="Give more held-out images, or match fewer members.",
        )
    by_score = candidates.argsort(stable=True)
    scores, indices = candidates[by_score].tolist(), by_score.tolist()
    wanted, matched = members.tolist(), [0] * len(members)
    for member in order(len(members), seed).tolist():
        right = bisect_left(scores, wanted[member])
        if right == len(scores):
            nearest = right - 1
        elif right == 0:
            nearest = 0
        else:
            nearest = min(right - 1, right, key=lambda place: abs(scores[place] - wanted[member]))
        matched[member] = indices.pop(nearest)
        scores.pop(nearest)
    return torch.tensor(matched, dtype=torch.long)


def auc_of_sets(members: Tensor, non_members: Tensor, seed: int = 0) -> Interval | None:
    """AUC of telling two sets of images apart by the scores of a model that saw neither.

    Args:
        members: Scores, (members,).
        non_members: Scores, (non-members,).
        seed: Of the bootstrap.

    Returns:
        None where there are too few images.
    """
    is_member = torch.arange(len(members) + len(non_members)) < len(members)
    return roc_summary(AttackScores.of_one_model(torch.cat([members, non_members]), is_member), seed=seed).auc


def why_unequal(found: Interval) -> str | None:
    """Why two sets are not equally hard; None where the interval of their AUC contains 0.5.

    Args:
        found: Their AUC under a model that saw neither; the score is higher for easier images.

    >>> why_unequal(Interval(0.3, 0.2, 0.4))
    'the non-members are easier than the members: AUC 0.300 [0.200, 0.400] under a retrained model that saw neither'
    """
    if found.low <= 0.5 <= found.high:
        return None
    how = "harder" if found.value > 0.5 else "easier"
    return (
        f"the non-members are {how} than the members: AUC {found.value:.3f} [{found.low:.3f}, {found.high:.3f}] under "
        "a retrained model that saw neither"
    )
