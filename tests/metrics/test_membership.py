"""The membership attack: what it answers where the answer is known."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from famr.metrics.membership import mia_efficacy, predict_non_members


def confidences(sure: float, count: int, seed: int) -> torch.Tensor:
    noise = torch.randn(count, generator=torch.Generator().manual_seed(seed))
    return torch.sigmoid(sure + noise)


MEMBERS, NON_MEMBERS = confidences(6.0, 400, 0), confidences(0.0, 300, 1)


def test_a_forget_set_like_the_members_is_called_members() -> None:
    assert mia_efficacy(MEMBERS, NON_MEMBERS, confidences(6.0, 200, 2)) < 0.03


def test_a_forget_set_like_held_out_images_is_called_non_members() -> None:
    assert mia_efficacy(MEMBERS, NON_MEMBERS, confidences(0.0, 200, 3)) > 0.9


def test_where_both_lie_apart_it_agrees_with_a_threshold_between_them() -> None:
    forget = torch.cat([confidences(6.0, 60, 4), confidences(0.0, 40, 5)])
    threshold = float((MEMBERS.quantile(0.01) + NON_MEMBERS.quantile(0.99)) / 2)
    assert mia_efficacy(MEMBERS, NON_MEMBERS, forget) == pytest.approx(
        float((forget < threshold).float().mean()), abs=0.03
    )


def test_the_attack_is_balanced_and_never_sees_the_forget_set() -> None:
    """Twice the members change nothing but the draw, and the forget set's size changes nothing for its images."""
    forget = confidences(3.0, 50, 6)
    alone = [mia_efficacy(MEMBERS, NON_MEMBERS, one[None]) for one in forget]
    assert sum(alone) / 50 == pytest.approx(mia_efficacy(MEMBERS, NON_MEMBERS, forget))


def elsewhere(sets: list[Tensor]) -> NDArray[np.bool_]:
    """What the attack of another library calls non-members, from answers of two classes, the first being the right."""
    known, unknown, asked = (torch.stack([each, 1 - each], dim=1).numpy() for each in sets)
    first = [np.zeros(len(each), dtype=int) for each in (known, unknown, asked)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that of its imports, and of scikit-learn about what it is asked
        from art.attacks.inference.membership_inference import MembershipInferenceBlackBox
        from art.estimators.classification import BlackBoxClassifier

        answered = BlackBoxClassifier(lambda given: given, input_shape=(2,), nb_classes=2)
        attack = MembershipInferenceBlackBox(answered, attack_model_type="svm")
        attack.fit(known, first[0], unknown, first[1])
        said: NDArray[np.float32] = attack.infer(asked, first[2])
    return said[:, 0] == 0


@pytest.mark.parametrize(("sure", "between"), [(2.0, 1.0), (2.0, 0.0), (3.0, 3.0), (4.0, 2.0)])
def test_another_librarys_attack_says_the_same_of_nearly_all(sure: float, between: float) -> None:
    sets = [confidences(sure, 300, 7), confidences(0.0, 300, 8), confidences(between, 400, 9)]
    ours, theirs = predict_non_members(*sets).numpy() == 1, elsewhere(sets)
    assert 0 < ours.sum() < len(ours)
    assert (ours == theirs).mean() > 0.94
