"""Intervals, paired tests, Holm's correction and effect sizes of a bench, against scipy, an analysis of variance and
simulated benches in which no method is better than another."""

from __future__ import annotations

import math
from itertools import combinations
from statistics import fmean

import numpy as np
import pytest
from scipy import stats

from famr.bench.statistics import (
    ALPHA,
    BEST,
    TIED,
    Difference,
    Figures,
    blocked_mean,
    blocks_of,
    holm,
    mean_of,
    paired_difference,
    rank,
)


def figures_of(table: np.ndarray) -> dict[tuple[str, int], float]:
    """A table of requests × seeds, by cell."""
    return {(f"class {row}", seed): float(value) for (row, seed), value in np.ndenumerate(table)}


def one_request(*values: float) -> dict[tuple[str, int], float]:
    return figures_of(np.array([values]))


def paired(first: Figures, second: Figures) -> Difference:
    found = paired_difference(first, second)
    assert found is not None
    assert found.p_value is not None
    return found


def test_the_interval_of_a_mean_agrees_with_scipy() -> None:
    values = [0.2, 0.9, 0.4, 0.1]
    mean = mean_of(values)
    assert mean is not None
    low, high = stats.t.interval(0.95, 3, loc=0.4, scale=stats.sem(values))
    assert (mean.low, mean.high) == (pytest.approx(low), pytest.approx(high))
    assert mean_of([]) is None


def test_blocks_are_requests_where_there_are_three_and_seeds_otherwise() -> None:
    table = np.arange(12.0).reshape(4, 3) ** 2
    assert blocks_of(figures_of(table)) == ("requests", tuple(map(fmean, table.tolist())))
    assert blocks_of(figures_of(table[:2])) == ("seeds", tuple(map(fmean, table[:2].T.tolist())))
    lacking = figures_of(table[:2])
    del lacking["class 1", 2]
    assert blocks_of(lacking) == ("seeds", ())  # seeds 0 and 1 have both requests, seed 2 the easier one alone
    mean = blocked_mean(lacking)
    assert mean is not None
    assert mean.half_width is None
    assert mean.mean == pytest.approx((table[0].mean() + table[1, :2].mean()) / 2)
    assert blocked_mean({}) is None


def test_more_seeds_of_the_same_requests_do_not_narrow_an_interval_over_requests() -> None:
    few = figures_of(np.array([[1.0], [2.0], [4.0]]))
    many = figures_of(np.array([[1.0], [2.0], [4.0]]).repeat(50, axis=1))
    assert blocked_mean(few) == blocked_mean(many)


def test_the_paired_test_agrees_with_scipy() -> None:
    draws = np.random.default_rng(0)
    for requests, seeds in ((1, 3), (2, 4), (3, 1), (5, 3)):
        first, second = draws.normal(size=(2, requests, seeds))
        axis = 1 if requests >= 3 else 0
        expected = stats.ttest_rel(first.mean(axis), second.mean(axis))
        found = paired(figures_of(first), figures_of(second))
        assert found.p_value == pytest.approx(expected.pvalue)
        interval = expected.confidence_interval(0.95)
        assert (found.mean.low, found.mean.high) == (pytest.approx(interval.low), pytest.approx(interval.high))


def test_over_requests_the_test_is_that_of_the_mixed_model_with_random_requests() -> None:
    """F = MS(method) / MS(method × request) of the analysis of variance of methods × requests × seeds, in loops."""
    values = np.random.default_rng(1).normal(size=(2, 5, 3))  # (methods, requests, seeds)
    values[0] += 0.7
    whole = values.mean()
    of_methods, of_requests, of_both = values.mean((1, 2)), values.mean((0, 2)), values.mean(2)
    methods = sum(5 * 3 * (of_methods[m] - whole) ** 2 for m in range(2)) / (2 - 1)
    interaction = sum(
        3 * (of_both[m, r] - of_methods[m] - of_requests[r] + whole) ** 2 for m in range(2) for r in range(5)
    ) / ((2 - 1) * (5 - 1))
    found = paired(figures_of(values[0]), figures_of(values[1]))
    assert found.p_value == pytest.approx(stats.f.sf(methods / interaction, 1, 4))


def test_what_makes_a_cell_hard_for_every_method_cancels() -> None:
    draws = np.random.default_rng(2)
    first, second = draws.normal(size=(2, 4, 3))
    hard = 100 * draws.normal(size=(4, 3))
    plain, shifted = (paired(figures_of(first + more), figures_of(second + more)) for more in (0 * hard, hard))
    assert shifted.p_value == pytest.approx(plain.p_value)
    assert shifted.standardised == pytest.approx(plain.standardised)


def test_equal_differences_are_told_from_none() -> None:
    base = one_request(0.25, 0.5, 0.75)
    assert paired(base, base) == ((0.0, 0.0, 3), None, 1.0)
    more = {cell: value + 0.5 for cell, value in base.items()}
    assert paired(more, base) == ((0.5, 0.0, 3), None, 0.0)
    tenths = one_request(0.1, 0.7, 2.3)
    rounded = {cell: value + 0.1 for cell, value in tenths.items()}  # 0.1 is no binary fraction
    assert paired(rounded, tenths)[1:] == (None, 0.0)
    assert paired_difference(base, {}) is None


def test_hedges_g_is_free_of_the_bias_of_a_small_sample() -> None:
    """The mean of g over many samples of three is the standardised difference that they were drawn with."""
    samples = np.random.default_rng(3).normal(0.8, 1.0, size=(4000, 3))
    zero = one_request(0, 0, 0)
    found = [paired(one_request(*sample), zero).standardised for sample in samples.tolist()]
    assert np.mean([value for value in found if value is not None]) == pytest.approx(0.8, abs=0.05)
    (first, *_) = samples
    factor = math.gamma(1) / (math.sqrt(1) * math.gamma(0.5))
    assert found[0] == pytest.approx(factor * first.mean() / first.std(ddof=1))


def test_holm_agrees_with_an_example_by_hand_and_with_a_slow_loop() -> None:
    # sorted 0.005, 0.01, 0.03, 0.04 times 4, 3, 2, 1: 0.02, 0.03, 0.06, 0.04; the last may not be below the third
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
    p_values = np.random.default_rng(4).beta(0.3, 1, size=12).tolist()
    for level in (0.01, 0.05, 0.3):
        rejected: set[int] = set()
        while open_ := [index for index in range(12) if index not in rejected]:  # Holm's procedure, step by step
            smallest = min(open_, key=p_values.__getitem__)
            if p_values[smallest] > level / len(open_):
                break
            rejected.add(smallest)
        assert {index for index, p in enumerate(holm(p_values)) if p <= level} == rejected


def test_every_pair_counts_in_the_correction() -> None:
    draws = np.random.default_rng(5)
    values = {name: figures_of(draws.normal(size=(4, 2))) for name in "abcd"}
    ranking = rank(values)
    pairs = [frozenset(pair) for pair in combinations("abcd", 2)]
    expected = holm([paired(*(values[name] for name in sorted(pair))).p_value or 0.0 for pair in pairs])
    assert {pair: pytest.approx(p) for pair, p in zip(pairs, expected, strict=True)} == ranking.corrected
    assert ranking.blocks.unit == "requests"


def test_marks_are_decided_by_pairs_and_need_three_blocks() -> None:
    # always a little worse: the intervals overlap, the pairs do not
    assert rank({"a": one_request(1, 5, 9), "b": one_request(1.1, 5.11, 9.1)}).marks() == {"a": BEST}
    assert rank({"a": one_request(1, 5, 9), "b": one_request(2, 4, 9.1)}).marks() == {"a": BEST, "b": TIED}
    untested = rank({"a": one_request(1, 5), "b": one_request(2, 4.5)})
    assert untested.marks() == {"a": BEST}
    assert untested.corrected == {}
    assert rank({"a": {}, "b": {}}).marks() == {}
    assert rank({"a": {}}).best() is None


def test_marks_among_some_methods_keep_the_correction_of_all() -> None:
    near, far = one_request(1, 2, 3), one_request(1.1, 2.12, 3.11)
    alone = rank({"a": near, "b": far})
    assert alone.marks() == {"a": BEST}
    others = {name: one_request(*np.random.default_rng(index).normal(0, 9, 3)) for index, name in enumerate("cdefgh")}
    ranking = rank({"a": near, "b": far, **others})
    assert ranking.marks(among=["a", "b"]) == {"a": BEST, "b": TIED}


REPEATS = 2000


def test_cells_as_independent_find_differences_where_classes_vary_and_blocks_do_not() -> None:
    """Two equally good methods; which does better on a class is random, and its three seeds agree."""
    draws = np.random.default_rng(6)
    values = draws.normal(size=(REPEATS, 5, 1)) + 0.3 * draws.normal(size=(REPEATS, 5, 3))  # (benches, classes, seeds)
    over_cells = stats.ttest_1samp(values.reshape(REPEATS, 15), 0.0, axis=1).pvalue < ALPHA
    zero = figures_of(np.zeros((5, 3)))
    over_requests = [(paired(figures_of(table), zero).p_value or 0.0) < ALPHA for table in values]
    assert np.mean(over_cells) > 5 * ALPHA
    assert np.mean(over_requests) == pytest.approx(ALPHA, abs=3 * math.sqrt(ALPHA * (1 - ALPHA) / REPEATS))


def test_choosing_the_best_by_the_same_figures_costs_no_error_when_all_pairs_are_corrected() -> None:
    """Ten equally good methods on ten classes: a test of the best against the others takes luck for a difference."""
    draws, names = np.random.default_rng(7), "abcdefghij"
    best_alone, all_pairs = [], []
    for table in draws.normal(size=(250, 10, 10, 1)):  # (benches, methods, classes, seeds)
        values = {name: figures_of(figures) for name, figures in zip(names, table, strict=True)}
        ranking = rank(values)
        best = ranking.best()
        assert best is not None
        p_values = [paired(values[name], values[best]).p_value or 0.0 for name in names if name != best]
        best_alone.append(min(holm(p_values)) < ALPHA)
        all_pairs.append(len(ranking.marks()) < len(names))
    assert np.mean(best_alone) > 2 * ALPHA
    assert np.mean(all_pairs) <= ALPHA + 2 * math.sqrt(ALPHA * (1 - ALPHA) / 250)
