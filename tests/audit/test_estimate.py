"""Estimates with bootstrap intervals: against closed forms."""

from __future__ import annotations

import math

import pytest
import torch

from famr.audit.estimate import Estimate, gap_estimate, mean_estimate, mean_gap_estimate


def uniform(size: int) -> torch.Tensor:
    return torch.rand(size, generator=torch.Generator().manual_seed(0))


def ends(estimate: Estimate) -> tuple[float, float]:
    found = estimate.ends()
    assert found is not None
    return found


def test_intervals_contain_the_mean_and_shrink_with_more_images() -> None:
    widths = []
    for values in (uniform(50), uniform(5000)):
        estimate = mean_estimate(values)
        low, high = ends(estimate)
        assert estimate.value is not None
        assert low < estimate.value < high
        assert low < 0.5 < high
        half = 1.96 * float(values.double().std()) / len(values) ** 0.5
        assert (high - low) / 2 == pytest.approx(half, rel=0.15)
        widths.append(high - low)
    assert widths[1] < widths[0] / 5


def test_the_interval_of_hits_is_the_binomial_one() -> None:
    """Values of few levels, such as right or wrong, have the normal interval of their mean."""
    values = torch.tensor([1.0, 0.0, -1.0, 0.5]).repeat_interleave(torch.tensor([400, 1000, 70, 530]))
    error = float(values.double().std(correction=0)) / math.sqrt(len(values))
    low, high = ends(mean_estimate(values, seed=3))
    assert low == pytest.approx(float(values.mean()) - 1.96 * error, abs=0.2 * error)
    assert high == pytest.approx(float(values.mean()) + 1.96 * error, abs=0.2 * error)


def test_the_same_seed_gives_the_same_interval_and_another_a_similar_one() -> None:
    values = uniform(300)
    assert mean_estimate(values, seed=1) == mean_estimate(values, seed=1)
    error = float(values.double().std()) / math.sqrt(len(values))
    first, second = (ends(mean_estimate(values, seed)) for seed in (1, 2))
    assert first != second
    assert first == pytest.approx(second, abs=0.3 * error)


def test_a_gap_that_may_be_none_starts_at_zero() -> None:
    assert gap_estimate(torch.tensor([0.1, -0.1] * 20)).low == 0.0
    below, above = gap_estimate(-uniform(500)), gap_estimate(uniform(500))
    assert below.value == above.value == pytest.approx(float(uniform(500).mean()))
    assert ends(below) == pytest.approx(ends(above))
    low, high = ends(below)
    assert 0 < low < 0.5 < high


def test_the_mean_of_gaps_has_an_interval_around_it() -> None:
    few, many = uniform(50), uniform(5000)
    together = mean_gap_estimate([few - 0.25, 0.75 - many])
    assert together.value == pytest.approx((abs(float(few.mean()) - 0.25) + 0.75 - float(many.mean())) / 2)
    low, high = ends(together)
    assert low < 0.25 < high


def test_an_interval_covers_the_draws_of_an_attack_as_well_as_the_images() -> None:
    """An attack that calls all images members in one draw and none in the next: draws alone decide."""
    flips = torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0])[:, None].expand(10, 5000)
    low, high = ends(mean_estimate(flips))
    error = math.sqrt(0.8 * 0.2 / 10)
    assert (high - low) / 2 == pytest.approx(1.96 * error, rel=0.2)
    assert mean_estimate(flips.mean(dim=0)).high == pytest.approx(0.8)  # as if they were one draw
    assert gap_estimate(1 - flips).low == 0.0
    alone, beside = mean_gap_estimate([1 - flips]), mean_gap_estimate([1 - flips, uniform(5000)])
    assert ends(alone) == pytest.approx((1 - high, 1 - low), abs=0.11)
    assert beside.value == pytest.approx((0.2 + float(uniform(5000).mean())) / 2)
    assert ends(beside)[1] - ends(beside)[0] == pytest.approx((high - low) / 2, rel=0.3)


def test_draws_that_agree_have_the_interval_of_the_images() -> None:
    values = uniform(400)
    assert ends(mean_estimate(values.expand(10, 400))) == pytest.approx(ends(mean_estimate(values)), abs=0.01)


def test_a_single_image_has_an_interval_of_no_width() -> None:
    one = torch.tensor([0.25])
    assert ends(mean_estimate(one)) == (0.25, 0.25)
    assert mean_gap_estimate([one, -one]) == Estimate(0.25, 0.25, 0.25)
