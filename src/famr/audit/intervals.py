"""Intervals for means over images, by drawing the images again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from famr.audit.verdict import Figure

RESAMPLES = 2000
CHUNK = 200
"""Draws that are in memory together."""
LEVELS = 64
"""Up to so many different values a draw is how often each of them comes, which is quickly drawn."""


def resampled_means(values: Tensor, seed: int = 0) -> Tensor:
    """The mean of each draw of as many images with replacement, (draws,)."""
    values = values.double().cpu()
    levels, counts = np.unique(values.numpy(), return_counts=True)
    if len(levels) <= LEVELS:  # right or wrong, before and after: the same distribution, without drawing every image
        times = np.random.default_rng(seed).multinomial(len(values), counts / len(values), size=RESAMPLES)
        return torch.from_numpy(times @ levels / len(values))
    draws = torch.Generator().manual_seed(seed)
    chunks = (torch.randint(len(values), (CHUNK, len(values)), generator=draws) for _ in range(RESAMPLES // CHUNK))
    return torch.cat([values[picked].mean(dim=1) for picked in chunks])


def middle(draws: Tensor) -> tuple[float, float]:
    """Between which values 95 % of the draws lie."""
    low, high = torch.quantile(draws, torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return low, high


def mean_interval(values: Tensor, seed: int = 0) -> tuple[float, float, float]:
    """The mean, and between which values the middle 95 % of the means of resampled images lie.

    >>> mean_interval(torch.ones(10))
    (1.0, 1.0, 1.0)
    """
    return float(values.double().mean()), *middle(resampled_means(values, seed))


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


def mean_gap_figure(differences: Sequence[Tensor], seed: int = 0) -> Figure:
    """The mean of several |mean difference|, each over images of its own, as a figure.

    >>> mean_gap_figure([torch.tensor([-0.5, -0.5]), torch.tensor([0.25])])
    Figure(value=0.375, low=0.375, high=0.375, why_not=None)
    """
    value = sum(abs(float(each.double().mean())) for each in differences) / len(differences)
    draws = [resampled_means(each, seed + place).abs() for place, each in enumerate(differences)]
    low, high = middle(torch.stack(draws).mean(dim=0))
    return Figure(value, min(low, value), max(high, value))
