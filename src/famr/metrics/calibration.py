"""Calibration: is a model as sure as it is right?"""

from __future__ import annotations

import torch
from torch import Tensor

from famr.losses.objective import at_least_float32
from famr.metrics.forgetting import correct

BINS = 15


def expected_calibration_error(logits: Tensor, labels: Tensor) -> float:
    """ECE: |accuracy − mean confidence| in 15 equal bins of the confidence, weighted by their images.

    >>> round(expected_calibration_error(torch.tensor([[0.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 1])), 6)
    0.0
    """
    sure = torch.softmax(at_least_float32(logits), dim=-1).max(dim=-1).values
    right = correct(logits, labels)
    bins = (sure * BINS).ceil().long().clamp(1, BINS) - 1  # (0, 1/15], (1/15, 2/15], …
    gaps = torch.zeros(BINS, dtype=torch.float64).index_add(0, bins, (right - sure).double())
    return float(gaps.abs().sum() / len(labels))
