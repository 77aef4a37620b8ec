"""Intervals for means over images, by drawing the images again."""

from __future__ import annotations

import torch
from torch import Tensor

from famr.audits.verdict import Figure

RESAMPLES = 2000


def mean_interval(values: Tensor, seed: int = 0) -> tuple[float, float, float]:
    """The mean, and between which values the middle 95 % of the means of resampled images lie.

    >>> mean_interval(torch.ones(10))
    (1.0, 1.0, 1.0)
    """
    values = values.double().cpu()
    draws = torch.Generator().manual_seed(seed)
    picked = torch.randint(len(values), (RESAMPLES, len(values)), generator=draws)
    low, high = torch.quantile(values[picked].mean(dim=1), torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return float(values.mean()), low, high


def mean_figure(values: Tensor, seed: int = 0) -> Figure:
    """The mean as a figure."""
    return Figure(*mean_interval(values, seed))


def gap_figure(differences: Tensor, seed: int = 0) -> Figure:
    """|mean difference| as a figure; its interval begins at 0 where the difference may be none.

    >>> gap_figure(torch.tensor([-0.5, -0.5]))
    Figure(value=0.5, low=0.5, high=0.5, why_not=None)
    """
    mean, low, high = mean_interval(differences, seed)
    nearest = 0.0 if low <= 0 <= high else min(abs(low), abs(high))
    return Figure(abs(mean), nearest, max(abs(low), abs(high)))
