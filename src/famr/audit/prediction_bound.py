"""The largest value that one more retrained model would show, from the values of those that there are."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self, TypeVar

SMALLEST_DISTANCE = 1e-12
"""Mean distances below it are raised to it: their logarithm is taken."""

T = TypeVar("T")


class ReferenceSpread(Protocol):
    """How the retrained models of an audit differ from each other, as one gate measures it."""

    @property
    def count(self) -> int:
        """The number of retrained models."""

    def bound(self, level: float) -> float:
        """The value that one more retrained model exceeds with this probability.

        Args:
            level: From 0 to 1.
        """

    def without(self, index: int) -> ReferenceSpread:
        """The spread of the others.

        Args:
            index: Of the model that is left out.
        """


@dataclass(frozen=True)
class Values:
    """One value a model.

    Attributes:
        values: Of each model.
    """

    values: tuple[float, ...]

    @property
    def count(self) -> int:
        """The number of models."""
        return len(self.values)

    def without(self, index: int) -> Self:
        """The values of the others.

        Args:
            index: Of the model that is left out.
        """
        return replace(self, values=_without(self.values, index))


@dataclass(frozen=True)
class Upper(Values):
    """Values that are judged as they are, each model against the others: a large one is bad."""

    def bound(self, level: float) -> float:
        """`upper_prediction_bound`.

        Args:
            level: From 0 to 1.
        """
        return upper_prediction_bound(self.values, level)


@dataclass(frozen=True)
class Gaps:
    """Values that are |xᵢ − mean of the others|, or a mean of such gaps.

    Without xᵢ the sum of squares falls by gapᵢ² · (n−1)/n, so that the spread of the others follows from the same gaps.

    Attributes:
        gaps: Of each model.
        left_out: A model that does not belong to those whose spread this is; None: all belong.

    >>> of_all = Gaps((2.5, 1.25, 0.0, 1.25, 2.5))  # of 1, 2, 3, 4 and 5
    >>> of_the_others = [2.0, 2 / 3, 2 / 3, 2.0]  # of 1, 2, 3 and 4
    >>> of_all.without(4).bound(0.05) == gap_prediction_bound(of_the_others, 0.05)
    True
    """

    gaps: tuple[float, ...]
    left_out: int | None = None

    @property
    def count(self) -> int:
        """The number of models."""
        return len(self.gaps) - (self.left_out is not None)

    def bound(self, level: float) -> float:
        """`gap_prediction_bound`.

        Args:
            level: From 0 to 1.
        """
        squares, count = _sum_of_squares(self.gaps), len(self.gaps)
        if self.left_out is not None:
            squares = max(squares - self.gaps[self.left_out] ** 2 * (count - 1) / count, 0.0)
        return _two_sided(squares, self.count, level)

    def without(self, index: int) -> Gaps:
        """The spread of the others; one model can be left out.

        Args:
            index: Of the model that is left out.
        """
        return replace(self, left_out=index)


@dataclass(frozen=True)
class Shares(Values):
    """Shares xᵢ of images, from 0 to 1, that are judged by their gap |xᵢ − mean of the others|: an attack recovers few
    images or many.

    Attributes:
        images: What they are shares of.

    >>> few, none = Shares((0.0, 0.0, 0.1, 0.0, 0.2), 40), Shares((0.0, 0.0, 0.0, 0.0, 0.0), 40)
    >>> round(few.bound(0.05), 3), round(none.bound(0.05), 3)
    (0.575, 0.0)
    """

    images: int

    def bound(self, level: float) -> float:
        """max(Φ(m + w) − x̄, x̄ − Φ(m − w)), w = t_{n−1, 1−level/2} · s · √(1 + 1/n), with m and s of Φ⁻¹ of the shares.

        Where most retrained models recover nothing and one recovers a third, shares are not normal: they end at 0, and
        spread more the farther they are from it. An image is recovered where a continuous score is beyond a limit, so
        that Φ⁻¹ of a share is the mean score [Bliss 1934]. Half an image is added to those that are recovered and to
        those that are not, as Φ⁻¹ of 0 is −∞.

        Args:
            level: From 0 to 1.
        """
        normal = statistics.NormalDist()
        scores = [normal.inv_cdf((share * self.images + 0.5) / (self.images + 1)) for share in self.values]
        middle, mean = statistics.fmean(scores), statistics.fmean(self.values)
        width = _two_sided(sum((score - middle) ** 2 for score in scores), self.count, level)
        low, high = (
            (normal.cdf(end) * (self.images + 1) - 0.5) / self.images for end in (middle - width, middle + width)
        )
        return max(min(high, 1.0) - mean, mean - max(low, 0.0), 0.0)


@dataclass(frozen=True)
class Folded(Values):
    """Values, not folded yet, that are judged by their distance from a known centre, whichever side they are on.

    Attributes:
        centre: What they are folded at; it is added to the bound.

    >>> round(Folded((0.51, 0.47, 0.50, 0.53, 0.49), centre=0.5).bound(0.05), 3)
    0.568
    """

    centre: float

    def bound(self, level: float) -> float:
        """centre + |m − centre| + t_{n−1, 1−level/2} · s · √(1 + 1/n): the farther end of the two-sided bound.

        `upper_prediction_bound` of what is folded would be too low: folded values spread less than those behind them.

        Args:
            level: From 0 to 1.
        """
        mean = statistics.fmean(self.values)
        half = _two_sided(sum((value - mean) ** 2 for value in self.values), self.count, level)
        return self.centre + abs(mean - self.centre) + half


@dataclass(frozen=True)
class Distances:
    """Values that are a model's mean distance to the retrained models, less that between them.

    Attributes:
        between: Distance of each pair of models, symmetric, 0 on the diagonal.
    """

    between: tuple[tuple[float, ...], ...]

    @property
    def count(self) -> int:
        """The number of models."""
        return len(self.between)

    def bound(self, level: float) -> float:
        """exp(m + t_{n−1, 1−level} · s · (n−1)/(n−2) · √(1 + 1/n)) − D, from the log of each model's mean distance.

        Distances are positive and skewed: some models are far from all others, none is near them all. So they are taken
        as products, dᵢⱼ = exp(μ + αᵢ + αⱼ) with normal α, and the bound is made on logarithms, of mean m and deviation
        s. To first order the log of model i's mean distance to the others is μ + αᵢ + the mean of the other α: these
        means share their comparisons, and spread by (n−2)/(n−1) of what the α do. One more model shares none, so s is
        raised to the spread of the α. D is the mean of all pairs.

        Args:
            level: From 0 to 1.

        >>> alike = ((0.0, 0.5, 0.5), (0.5, 0.0, 0.5), (0.5, 0.5, 0.0))
        >>> round(Distances(alike).bound(0.05), 9)
        0.0
        """
        others = self.count - 1
        means = [sum(row) / others for row in self.between]
        logs = [math.log(max(mean, SMALLEST_DISTANCE)) for mean in means]
        middle = statistics.fmean(logs)
        above = (upper_prediction_bound(logs, level) - middle) * others / (others - 1)
        return math.exp(middle + above) - statistics.fmean(means)

    def without(self, index: int) -> Distances:
        """The distances between the others.

        Args:
            index: Of the model that is left out.
        """
        return Distances(tuple(_without(row, index) for row in _without(self.between, index)))


def _without(values: tuple[T, ...], index: int) -> tuple[T, ...]:
    return values[:index] + values[index + 1 :]


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
