"""Intervals and paired tests over requests and seeds, Holm's correction for all pairs, and effect sizes.

The figures of a method come in cells, one for each request and seed. Cells of one request are alike: a class that is
hard to forget is hard with every seed. Five classes with three seeds each are therefore not fifteen independent
observations; a t test over the fifteen finds differences where there are none: pseudoreplication [Hurlbert 1984]. Here
cells are averaged to *blocks*, and only blocks are counted:

- at least three requests: a block is a request, averaged over its seeds. For two methods this is the test of the mixed
  model with random requests, F = MS(method) / MS(method × request). It speaks of requests like these, forgotten by the
  originals of these seeds: what all requests of one original have in common is in no interval.
- fewer: a block is a seed, averaged over the requests. It speaks of these requests alone.
- fewer than three blocks: not tested.

Values are paired by cell, so that what makes a request hard for every method cancels. All pairs of methods are tested
and corrected together: the best method is chosen by the same figures, and whichever it is, its comparisons are among
those for which Holm's correction holds the family-wise error [Holm 1979]. Testing only the best against the others
would need fewer comparisons, but would take the luck that made it the best for a difference.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal, NamedTuple

Figures = Mapping[tuple[str, int], float]
"""Figures of a method by cell: the request and the seed."""
LEVEL = 0.95
ALPHA = 0.05
FEWEST_BLOCKS = 3
"""With fewer requests, blocks are seeds; with fewer blocks there is no test."""
ROUNDING = 1e-9
"""Differences that vary by no more than this share of their mean are equal."""
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


class Blocks(NamedTuple):
    """Figures averaged to what counts as one observation.

    Attributes:
        unit: What a block is.
        means: A mean for each block; none where blocks are seeds and a seed lacks a request.
    """

    unit: Literal["requests", "seeds"]
    means: tuple[float, ...]


class Difference(NamedTuple):
    """How much larger the figures of one method are than those of another, paired by cell.

    Attributes:
        mean: Over the blocks, with the interval of this one comparison.
        standardised: Hedges' g of the paired differences: their mean in units of their standard deviation between
            blocks, corrected for the small sample. None without a test or where all differences are equal.
        p_value: Of the two-sided paired t test over the blocks; 0 where all differences are equal and not zero, as
            those of a count of passes may be. None with fewer than three blocks.
    """

    mean: Mean
    standardised: float | None
    p_value: float | None


def mean_of(values: Sequence[float]) -> Mean | None:
    """The mean and its interval by Student's t: x̄ ± t₀.₉₇₅(n − 1) · s / √n.

    Args:
        values: The sample; independent observations.

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
    from scipy.special import stdtrit

    quantile = float(stdtrit(len(values) - 1, (1 + LEVEL) / 2))
    return Mean(mean, quantile * statistics.stdev(values) / math.sqrt(len(values)), len(values))


def blocks_of(figures: Figures) -> Blocks:
    """Means of the requests over their seeds; with fewer than three requests, means of the seeds over the requests.

    Args:
        figures: By cell.

    >>> blocks_of({("class 3", 0): 1.0, ("class 3", 1): 2.0, ("class 5", 0): 5.0, ("class 5", 1): 6.0})
    Blocks(unit='seeds', means=(3.0, 4.0))
    """
    by_request, by_seed = _groups(figures, 0), _groups(figures, 1)
    if len(by_request) >= FEWEST_BLOCKS:
        return Blocks("requests", tuple(map(statistics.fmean, by_request)))
    if any(len(values) < len(by_request) for values in by_seed):
        return Blocks("seeds", ())  # seeds with different requests differ by the requests
    return Blocks("seeds", tuple(map(statistics.fmean, by_seed)))


def _groups(figures: Figures, part: Literal[0, 1]) -> list[list[float]]:
    """Figures that share the request (0) or the seed (1)."""
    groups: dict[str | int, list[float]] = {}
    for cell, value in figures.items():
        groups.setdefault(cell[part], []).append(value)
    return list(groups.values())


def blocked_mean(figures: Figures) -> Mean | None:
    """The mean over requests, of each its mean over seeds, with the interval over the blocks.

    Args:
        figures: By cell.

    Returns:
        None without figures. There is no interval for a single block, or where `blocks_of` has none.

    >>> blocked_mean({(f"class {request}", seed): request for request in (1, 2, 3) for seed in (0, 1, 2)})
    Mean(mean=2.0, half_width=2.4841..., size=3)
    """
    if not figures:
        return None
    over_blocks = mean_of(blocks_of(figures).means)
    return over_blocks or Mean(statistics.fmean(map(statistics.fmean, _groups(figures, 0))), None, 0)


def paired_difference(figures: Figures, others: Figures) -> Difference | None:
    """The paired difference of two methods over the cells that both have.

    With d̄ and s the mean and the standard deviation of the n differences of the blocks and Γ the gamma function:
    t = √n · d̄ / s with n − 1 degrees of freedom, and g = J(n − 1) · d̄ / s with
    J(m) = Γ(m/2) / (√(m/2) · Γ((m − 1)/2)) [Hedges 1981]. Of the standardised differences of paired values this is the
    one of the differences themselves (d_z in Lakens 2013): units of a column do not matter, and neither does how much
    harder one request is than another. For g = 1, about five in six further blocks have the same sign.

    Args:
        figures: Of one method, by cell.
        others: Of the other method.

    Returns:
        None without a common cell.

    >>> hard = {(f"class {request}", 0): 10.0 * request for request in (1, 2, 3)}
    >>> worse = {cell: value + more for (cell, value), more in zip(hard.items(), (1, 2, 3))}
    >>> paired_difference(worse, hard)
    Difference(mean=Mean(mean=2.0, half_width=2.4841..., size=3), standardised=1.128..., p_value=0.0741...)
    """
    paired = {cell: value - others[cell] for cell, value in figures.items() if cell in others}
    mean = blocked_mean(paired)
    if mean is None or mean.size < FEWEST_BLOCKS:
        return None if mean is None else Difference(mean, None, None)
    spread, freedom = statistics.stdev(blocks_of(paired).means), mean.size - 1
    if spread <= ROUNDING * abs(mean.mean):
        return Difference(mean, None, 0.0 if mean.mean else 1.0)
    from scipy.special import stdtr

    ratio = mean.mean / spread
    small_sample = math.exp(math.lgamma(freedom / 2) - math.lgamma((freedom - 1) / 2)) / math.sqrt(freedom / 2)
    return Difference(mean, small_sample * ratio, 2 * float(stdtr(freedom, -abs(ratio) * math.sqrt(mean.size))))


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values corrected by Holm's step-down method: the i-th smallest of m becomes the largest (m − j + 1) · p₍ⱼ₎ of
    j ≤ i, at most 1. Rejecting where it is below α errs anywhere with a probability of at most α [Holm 1979].

    Args:
        p_values: Of all comparisons of the family; they may depend on each other.

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03, 0.005])]
    [0.03, 0.06, 0.06, 0.02]
    """
    corrected = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected


@dataclass(frozen=True)
class Ranking:
    """Methods compared by one figure, each with each other.

    Attributes:
        figures: Of each method, by cell; small is good.
        corrected: Corrected p-value of each pair that could be tested.
    """

    figures: Mapping[str, Figures]
    corrected: Mapping[frozenset[str], float]

    @property
    def means(self) -> dict[str, float]:
        """Mean of each method over its requests."""
        means = {name: blocked_mean(figures) for name, figures in self.figures.items()}
        return {name: mean.mean for name, mean in means.items() if mean is not None}

    @property
    def blocks(self) -> Blocks:
        """The blocks of the cells that any method has, to count and to name them."""
        return blocks_of({cell: 0.0 for figures in self.figures.values() for cell in figures})

    def best(self, among: Collection[str] | None = None) -> str | None:
        """The method with the smallest mean.

        Args:
            among: The methods in question. None: all.
        """
        means = self.means
        return min((name for name in means if among is None or name in among), key=means.__getitem__, default=None)

    def marks(self, among: Collection[str] | None = None) -> dict[str, str]:
        """● for the smallest mean, ○ for those that were tested against it and are not significantly larger.

        Args:
            among: The methods to mark. None: all. The correction remains that of all pairs.
        """
        best = self.best(among)
        if best is None:
            return {}
        rivals = [name for name in self.figures if name != best and (among is None or name in among)]
        tied = [name for name in rivals if self.corrected.get(frozenset((best, name)), 0.0) >= ALPHA]
        return {best: BEST, **dict.fromkeys(tied, TIED)}


def rank(values: Mapping[str, Figures]) -> Ranking:
    """Compare all pairs of methods.

    Args:
        values: Figures by cell, by method; small is good. A method without cells is left out.

    >>> cells = [("class 3", 0), ("class 3", 1), ("class 3", 2)]
    >>> values = {"a": (0.1, 0.2, 0.3), "b": (0.2, 0.2, 0.3), "c": (0.901, 1.0, 1.1)}
    >>> rank({name: dict(zip(cells, figures, strict=True)) for name, figures in values.items()}).marks()
    {'a': '●', 'b': '○'}
    """
    values = {name: figures for name, figures in values.items() if figures}
    p_values = {}
    for first, second in combinations(values, 2):
        found = paired_difference(values[first], values[second])
        if found is not None and found.p_value is not None:
            p_values[frozenset((first, second))] = found.p_value
    return Ranking(values, dict(zip(p_values, holm(list(p_values.values())), strict=True)))
