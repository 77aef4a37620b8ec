"""What is measured on one model, and on both together."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from famr.audit.ungated import update_leakage_auc


def logits(rows: int, classes: int = 5, seed: int = 0, scale: float = 2.0) -> Tensor:
    return scale * torch.randn(rows, classes, generator=torch.Generator().manual_seed(seed))


def test_an_attacker_with_both_models_sees_which_predictions_moved() -> None:
    same, z = logits(50, seed=1), logits(50, seed=2)
    assert update_leakage_auc(z, torch.zeros_like(z), same, same) == 1.0
    assert update_leakage_auc(z, z, same, same) == pytest.approx(0.5)
