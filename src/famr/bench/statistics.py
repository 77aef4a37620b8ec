"""Means with intervals, and a paired test: which method is best, and which are not significantly worse."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

LEVEL = 0.95
FEWEST_PAIRS = 3
"""With fewer pairs there is no test."""
BEST, TIED = "●", "○"


class Mean(NamedTuple):
    """A mean with its 95 % interval.

    Attributes:
        mean: The mean.
        half_width: Half of the interval; None for a single value.
        size: Number of values.
    """

    mean: float
    half_width: float | None
    size: int

    @property
    def low(self) -> float | None:
        """Lower end of the interval."""
        return None if self.half_width is None else self.mean - self.half_width

    @property
    def high(self) -> float | None:
        """Upper end of the interval."""
        return None if self.half_width is None else self.mean + self.half_width


def mean_of(values: Sequence[float]) -> Mean | None:
    """The mean and its interval by Student's t: x̄ ± t₀.₉₇₅(n − 1) · s / √n.

    Args:
        values: The sample.

    Returns:
        None for an empty sample.

    >>> mean_of([1.0, 2.0, 3.0])
    Mean(mean=2.0, half_width=2.4841..., size=3)
    """
    if not values:
        return None
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Mean(mean, None, 1)
    from scipy import stats

    quantile = float(stats.t.ppf((1 + LEVEL) / 2, len(values) - 1))
    return Mean(mean, quantile * statistics.stdev(values) / math.sqrt(len(values)), len(values))


def differs(differences: Sequence[float]) -> bool:
    """Whether paired differences have a mean other than zero: a two-sided t test at the 5 % level.

    Args:
        differences: One per pair. Equal differences other than zero differ.

    >>> differs([1.0, 1.1, 0.9]), differs([1.0, -1.1, 0.2]), differs([0.5, 0.5, 0.5])
    (True, False, True)
    """
    mean = mean_of(differences)
    return mean is not None and mean.half_width is not None and abs(mean.mean) > mean.half_width


def rank_marks(values: Mapping[str, Mapping[tuple[str, int], float]]) -> dict[str, str]:
    """● for the smallest mean, ○ for those not significantly larger on the cells that both have.

    Args:
        values: Figures by cell, by method. A method without cells gets no mark; with fewer than three common cells
            there is no test, and only the best is marked.

    >>> cells = [("class 3", 0), ("class 3", 1), ("class 3", 2)]
    >>> values = {"a": (0.1, 0.2, 0.3), "b": (0.2, 0.2, 0.3), "c": (0.9, 1.0, 1.1)}
    >>> rank_marks({name: dict(zip(cells, figures, strict=True)) for name, figures in values.items()})
    {'a': '●', 'b': '○'}
    """
    means = {name: statistics.fmean(cells.values()) for name, cells in values.items() if cells}
    if not means:
        return {}
    best = min(means, key=lambda name: means[name])
    marks = {best: BEST}
    for name in means:
        common = [cell for cell in values[name] if cell in values[best]]
        differences = [values[name][cell] - values[best][cell] for cell in common]
        if name != best and len(common) >= FEWEST_PAIRS and not differs(differences):
            marks[name] = TIED
    return marks
