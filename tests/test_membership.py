"""The membership attack: what it answers where the answer is known."""

from __future__ import annotations

import pytest
import torch

from famr.metrics.membership import mia_efficacy


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
