"""What is measured on one model, and on both together."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from famr.audit.measurements import MEMBERSHIP_DRAWS, non_member_draws
from famr.audit.ungated import update_leakage_auc
from famr.data.loaders import order
from famr.metrics.membership import predict_non_members
from famr.metrics.predictions import Predictions


def logits(rows: int, classes: int = 5, seed: int = 0, scale: float = 2.0) -> Tensor:
    return scale * torch.randn(rows, classes, generator=torch.Generator().manual_seed(seed))


def test_membership_draws_in_threads_are_those_of_a_loop_each_on_a_half_of_its_own() -> None:
    targets = torch.arange(300) % 5
    forget, retain, test = (
        Predictions(logits(300, seed=seed) + confidence * F.one_hot(targets, 5), targets)
        for seed, confidence in ((0, 1.0), (1, 3.0), (2, 1.0))
    )
    true = [
        torch.softmax(predictions.logits, dim=-1)[torch.arange(300), targets] for predictions in (retain, test, forget)
    ]
    slow = []
    for draw in range(7, 7 + MEMBERSHIP_DRAWS):
        half = order(300, draw)[:150]
        slow.append(predict_non_members(true[0][half], true[1][half], true[2], draw))
    found = non_member_draws(forget, retain, test, seed=7)
    assert torch.equal(found, torch.stack(slow))
    assert found.shape == (MEMBERSHIP_DRAWS, 300)
    assert 0 < float(found.mean()) < 1
    assert len(found.unique(dim=0)) > 1


def test_an_attacker_with_both_models_sees_which_predictions_moved() -> None:
    same, z = logits(50, seed=1), logits(50, seed=2)
    assert update_leakage_auc(z, torch.zeros_like(z), same, same) == 1.0
    assert update_leakage_auc(z, z, same, same) == pytest.approx(0.5)
