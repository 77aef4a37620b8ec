"""The membership attack, on sets whose membership is known."""

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


def test_on_separated_sets_the_attack_is_a_threshold_between_them() -> None:
    forget = torch.cat([confidences(6.0, 60, 4), confidences(0.0, 40, 5)])
    threshold = float((MEMBERS.quantile(0.01) + NON_MEMBERS.quantile(0.99)) / 2)
    assert mia_efficacy(MEMBERS, NON_MEMBERS, forget) == pytest.approx(
        float((forget < threshold).float().mean()), abs=0.03
    )


def test_the_attack_is_balanced_and_never_sees_the_forget_set() -> None:
    """The prediction for a forget image does not depend on the other forget images."""
    forget = confidences(3.0, 50, 6)
    alone = [mia_efficacy(MEMBERS, NON_MEMBERS, one[None]) for one in forget]
    assert sum(alone) / 50 == pytest.approx(mia_efficacy(MEMBERS, NON_MEMBERS, forget))


def predicted_by_art(sets: list[Tensor]) -> NDArray[np.bool_]:
    """Non-members according to the Adversarial Robustness Toolbox, from predictions over two classes."""
    members, non_members, forget = (torch.stack([p, 1 - p], dim=1).numpy() for p in sets)
    labels = [np.zeros(len(p), dtype=int) for p in (members, non_members, forget)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its imports, and of scikit-learn
        from art.attacks.inference.membership_inference import MembershipInferenceBlackBox
        from art.estimators.classification import BlackBoxClassifier

        classifier = BlackBoxClassifier(lambda inputs: inputs, input_shape=(2,), nb_classes=2)
        attack = MembershipInferenceBlackBox(classifier, attack_model_type="svm")
        attack.fit(members, labels[0], non_members, labels[1])
        predictions: NDArray[np.float32] = attack.infer(forget, labels[2])
    return predictions[:, 0] == 0


@pytest.mark.parametrize(("sure", "between"), [(2.0, 1.0), (2.0, 0.0), (3.0, 3.0), (4.0, 2.0)])
def test_the_attack_of_another_library_agrees_on_nearly_all_images(sure: float, between: float) -> None:
    sets = [confidences(sure, 300, 7), confidences(0.0, 300, 8), confidences(between, 400, 9)]
    ours, theirs = predict_non_members(*sets).numpy() == 1, predicted_by_art(sets)
    assert 0 < ours.sum() < len(ours)
    assert (ours == theirs).mean() > 0.94
