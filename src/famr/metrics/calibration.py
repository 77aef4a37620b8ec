"""Calibration: does a model's confidence match its accuracy?"""

from __future__ import annotations

import torch
from torch import Tensor

from famr.losses.objective import at_least_float32
from famr.metrics.forgetting import correct

BINS = 15


def expected_calibration_error(logits: Tensor, labels: Tensor) -> float:
    """ECE: |accuracy − mean confidence| in 15 equal bins of the confidence, weighted by the images in each.

    Args:
        logits: (images, classes).
        labels: Class indices, (images,).

    Returns:
        A fraction from 0 to 1.

    >>> round(expected_calibration_error(torch.tensor([[0.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 1])), 6)
    0.0
    """
    confidence = torch.softmax(at_least_float32(logits), dim=-1).max(dim=-1).values
    bins = (confidence * BINS).ceil().long().clamp(1, BINS) - 1  # (0, 1/15], (1/15, 2/15], …
    difference = (correct(logits, labels) - confidence).double()
    gaps = torch.zeros(BINS, dtype=torch.float64).index_add(0, bins, difference)
    return float(gaps.abs().sum() / len(labels))
