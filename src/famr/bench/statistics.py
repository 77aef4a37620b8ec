"""Means with intervals, and a paired test: who is best, and who is not significantly worse."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

LEVEL = 0.95
TESTED_FROM = 3
"""Pairs below which there is no test."""


class Mean(NamedTuple):
    """A mean, and half of its 95 % interval; None with one value only."""

    mean: float
    half: float | None
    cells: int

    @property
    def low(self) -> float | None:
        """Where the interval begins."""
        return None if self.half is None else self.mean - self.half

    @property
    def high(self) -> float | None:
        """Where it ends."""
        return None if self.half is None else self.mean + self.half


def mean_of(values: Sequence[float]) -> Mean | None:
    """The mean with Student's t over the values; None without any.

    >>> mean_of([1.0, 2.0, 3.0])
    Mean(mean=2.0, half=2.4841..., cells=3)
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

    Differences that are all alike, and not zero, differ.

    >>> differs([1.0, 1.1, 0.9]), differs([1.0, -1.1, 0.2]), differs([0.5, 0.5, 0.5])
    (True, False, True)
    """
    found = mean_of(differences)
    return found is not None and found.half is not None and abs(found.mean) > found.half


Marks = dict[str, str]
BEST, TIED = "●", "○"


def marks(values: Mapping[str, Mapping[tuple[str, int], float]]) -> Marks:
    """● for the smallest mean, ○ for those not significantly larger on the cells that both have.

    `values` are figures by cell, by method; a method without cells gets no mark. With fewer than three common cells
    there is no test, and only the best is marked.

    >>> cells = [("class 3", 0), ("class 3", 1), ("class 3", 2)]
    >>> values = {"a": (0.1, 0.2, 0.3), "b": (0.2, 0.2, 0.3), "c": (0.9, 1.0, 1.1)}
    >>> marks({name: dict(zip(cells, found, strict=True)) for name, found in values.items()})
    {'a': '●', 'b': '○'}
    """
    means = {name: statistics.fmean(cells.values()) for name, cells in values.items() if cells}
    if not means:
        return {}
    best = min(means, key=lambda name: means[name])
    found = {best: BEST}
    for name in means:
        both = [cell for cell in values[name] if cell in values[best]]
        differences = [values[name][cell] - values[best][cell] for cell in both]
        if name != best and len(both) >= TESTED_FROM and not differs(differences):
            found[name] = TIED
    return found
