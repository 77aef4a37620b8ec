"""Membership: can the forget set be told from images the model was trained on?"""

from __future__ import annotations

import torch
from torch import Tensor

AT_MOST = 5000
"""Images of each kind the attack is trained on: a support vector machine takes quadratic time."""


def called_non_members(members: Tensor, non_members: Tensor, forget: Tensor, seed: int = 0) -> Tensor:
    """What an attack says of each forget image: 1 where it calls it a non-member.

    The attack is a support vector machine (rbf) on the true-class probability. It learns from retained training images
    (members) and test images (non-members), as many of each, and never sees the forget set.
    """
    from sklearn.svm import SVC

    count = min(len(members), len(non_members), AT_MOST)
    draws = torch.Generator().manual_seed(seed)
    known = torch.cat([found[torch.randperm(len(found), generator=draws)[:count]] for found in (members, non_members)])
    labels = [1] * count + [0] * count
    attack = SVC(kernel="rbf", C=3, gamma="auto").fit(known[:, None].double().numpy(), labels)
    return torch.from_numpy(attack.predict(forget[:, None].double().numpy()) == 0).double()


def mia_efficacy(members: Tensor, non_members: Tensor, forget: Tensor, seed: int = 0) -> float:
    """The share of the forget set that the attack calls non-members; good is what a retrained model gets, not "high".

    >>> sure, unsure = torch.full((50,), 0.99), torch.full((50,), 0.3)
    >>> mia_efficacy(sure, unsure, forget=torch.tensor([0.99, 0.3, 0.3, 0.3]))
    0.75
    """
    return float(called_non_members(members, non_members, forget, seed).mean())
