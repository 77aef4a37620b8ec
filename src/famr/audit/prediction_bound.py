"""The largest value that one more retrained model would show, from the values of those that there are."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence


def gap_prediction_bound(gaps: Sequence[float], level: float) -> float:
    """t_{n−1, 1−level/2} · s · √(1 + 1/n): a further x is farther than this from the mean of n with this probability.

    The gap of one xᵢ of the n to the mean of the others is |xᵢ − m| · n/(n−1), so that s, their standard deviation,
    follows from the gaps alone: s² = Σ gapᵢ² · (n−1)/n². `upper_prediction_bound` would be too low here: gaps are
    folded at 0, and spread less around their own mean than what was folded. Where values are means of several gaps the
    bound is on the safe side, as such a mean has a shorter tail. [Hahn & Meeker 1991, ch. 4]

    Args:
        gaps: |xᵢ − mean of the others|, at least two.
        level: The probability of exceeding the bound, from 0 to 1.

    >>> round(gap_prediction_bound([2.5, 1.25, 0.0, 1.25, 2.5], 0.05), 3)  # of 1, 2, 3, 4 and 5
    4.809
    """
    return _two_sided(_sum_of_squares(gaps), len(gaps), level)


def gap_bound_of_others(gaps: Sequence[float], level: float) -> float:
    """The bound of `gap_prediction_bound` for the xᵢ with the largest gap, from the others alone.

    Without xᵢ the sum of squares falls by gapᵢ² · (n−1)/n.

    Args:
        gaps: |xᵢ − mean of the others|, at least three.
        level: The probability of exceeding the bound, from 0 to 1.

    >>> gaps_of_all = [2.5, 1.25, 0.0, 1.25, 2.5]  # of 1, 2, 3, 4 and 5
    >>> of_the_others = [2.0, 2 / 3, 2 / 3, 2.0]  # of 1, 2, 3 and 4
    >>> gap_bound_of_others(gaps_of_all, 0.05) == gap_prediction_bound(of_the_others, 0.05)
    True
    """
    count = len(gaps)
    others = _sum_of_squares(gaps) - max(gaps) ** 2 * (count - 1) / count
    return _two_sided(max(others, 0.0), count - 1, level)


def _sum_of_squares(gaps: Sequence[float]) -> float:
    """Σ (xᵢ − m)²."""
    return sum(gap**2 for gap in gaps) * ((len(gaps) - 1) / len(gaps)) ** 2


def _two_sided(sum_of_squares: float, count: int, level: float) -> float:
    from scipy.stats import t

    spread = math.sqrt(sum_of_squares / (count - 1) * (1 + 1 / count))
    return float(t.ppf(1 - level / 2, count - 1)) * spread


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
