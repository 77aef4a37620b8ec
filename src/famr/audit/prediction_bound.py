"""The largest value that one more retrained model would show, from the values of those that there are."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence


def upper_prediction_bound(values: Sequence[float], level: float) -> float:
    """m + t_{n−1, 1−level} · s · √(1 + 1/n): a further draw from the same normal is above it with this probability.

    The mean m and the deviation s are those of n values. The bound falls as n grows, and noise in single values does
    not raise it beyond what they really spread. [Hahn & Meeker 1991, ch. 4]

    Args:
        values: At least two.
        level: The probability of exceeding the bound, from 0 to 1.

    >>> round(upper_prediction_bound([1.0, 2.0, 3.0, 4.0, 5.0], 0.05), 3)
    6.692
    """
    from scipy.stats import t

    count = len(values)
    spread = statistics.stdev(values) * math.sqrt(1 + 1 / count)
    return statistics.fmean(values) + float(t.ppf(1 - level, count - 1)) * spread
