"""Membership inference: does an attack take the forget set for images that the model was not trained on?"""

from __future__ import annotations

import torch
from torch import Tensor

MAX_IMAGES = 5000
"""Images of each kind that the attack is trained on: a support vector machine takes quadratic time."""


def predict_non_members(members: Tensor, non_members: Tensor, forget: Tensor, seed: int = 0) -> Tensor:
    """Predictions of a membership attack for each forget image: 1 for a non-member, 0 for a member.

    The attack is a support vector machine (rbf) on the true-class probability. It is trained on as many members as
    non-members and never sees the forget set.

    Args:
        members: True-class probabilities of retained training images.
        non_members: Those of test images.
        forget: Those of the forget set, (images,).
        seed: Of the draw of the images that the attack is trained on.

    Returns:
        (images,), as doubles.
    """
    from sklearn.svm import SVC

    count = min(len(members), len(non_members), MAX_IMAGES)
    generator = torch.Generator().manual_seed(seed)
    samples = [kind[torch.randperm(len(kind), generator=generator)[:count]] for kind in (members, non_members)]
    labels = [1] * count + [0] * count
    attack = SVC(kernel="rbf", C=3, gamma="auto").fit(torch.cat(samples)[:, None].double().numpy(), labels)
    return torch.from_numpy(attack.predict(forget[:, None].double().numpy()) == 0).double()


def mia_efficacy(members: Tensor, non_members: Tensor, forget: Tensor, seed: int = 0) -> float:
    """MIA-efficacy: the share of the forget set that the attack takes for non-members.

    A good value is that of a retrained model, not a high one.

    Args:
        members: See `predict_non_members`, as for the other arguments.
        non_members: True-class probabilities of test images.
        forget: Those of the forget set.
        seed: Of the draw.

    >>> sure, unsure = torch.full((50,), 0.99), torch.full((50,), 0.3)
    >>> mia_efficacy(sure, unsure, forget=torch.tensor([0.99, 0.3, 0.3, 0.3]))
    0.75
    """
    return float(predict_non_members(members, non_members, forget, seed).mean())
