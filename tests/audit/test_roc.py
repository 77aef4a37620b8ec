"""The figures of an attack: against scikit-learn, closed forms, slow searches and simulated truth."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import beta, binom, norm
from sklearn.metrics import roc_auc_score, roc_curve
from torch import Tensor

from famr.audit.lira import ShadowConfidences, leave_one_out_scores
from famr.audit.roc import AttackScores, Interval, auc, image_auc, roc_summary, tpr_at, weighted_figures, weighted_roc
from famr.audit.shadows import halves
from famr.errors import NumericsError, RequestError


def draws(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.double)


def simulated(models: int, images: int, shift: float, seed: int = 0) -> ShadowConfidences:
    """Every image has a mean of its own; models that saw it are more confident by `shift` standard deviations."""
    seen = halves(images, models, seed)
    return ShadowConfidences.of_trained(
        4 * draws(images, seed=seed + 1) + draws(models, images, seed=seed + 2) + shift * seen, seen
    )


def test_auc_is_the_share_of_ordered_pairs_ties_included() -> None:
    for seed in range(5):
        scores = (2 * draws(60, seed=seed)).round()  # many ties
        member = draws(60, seed=seed + 50) > 0.3
        pairs = [(a, b) for a in scores[member].tolist() for b in scores[~member].tolist()]
        expected = sum((a > b) + (a == b) / 2 for a, b in pairs) / len(pairs)
        assert auc(scores, member) == pytest.approx(expected, abs=1e-12)


def test_the_weighted_curve_is_scikit_learns() -> None:
    for seed in range(5):
        scores = (2 * draws(300, seed=seed)).round().sort(descending=True).values.numpy()
        member = (draws(300, seed=seed + 50) > 0.3).numpy()
        weights = torch.randint(1, 4, (300,), generator=torch.Generator().manual_seed(seed)).double().numpy()
        expected = roc_curve(member, scores, sample_weight=weights, drop_intermediate=False)
        for ours, theirs in zip(weighted_roc(scores, member, weights), expected[:2], strict=True):
            assert ours == pytest.approx(theirs, abs=1e-12)


def test_weights_count_as_repeated_scores() -> None:
    for seed in range(5):
        scores, order = (2 * draws(300, seed=seed)).round().sort(descending=True)
        member = (draws(300, seed=seed + 50) > 0.3)[order]
        times = torch.randint(4, (300,), generator=torch.Generator().manual_seed(seed))
        repeated, truth = scores.repeat_interleave(times), member.repeat_interleave(times)
        false, true, _ = roc_curve(truth, repeated, drop_intermediate=False)
        called = (repeated > 1.0).double() + (repeated == 1.0).double() / 2
        expected = [
            roc_auc_score(truth, repeated),
            true[false <= 0.1].max(),
            true[false <= 0.3].max(),
            float(called[truth].mean() + 1 - called[~truth].mean()) / 2,
        ]
        figures = weighted_figures(scores.numpy(), member.numpy(), times.double().numpy(), (0.1, 0.3), threshold=1.0)
        assert figures == pytest.approx(expected, abs=1e-12)


def test_tpr_is_the_best_that_scikit_learns_curve_allows() -> None:
    for seed in range(5):
        scores = (20 * draws(3000, seed=seed)).round()
        member = draws(3000, seed=seed + 50) > 0
        false, true, _ = roc_curve(member, scores, drop_intermediate=False)
        for fpr in (0.01, 0.001):
            found = tpr_at(fpr, scores, member)
            assert found is not None
            assert found.value == pytest.approx(true[false <= fpr].max())
            assert found.low <= found.value <= found.high


def test_a_rate_that_the_images_cannot_resolve_is_not_given() -> None:
    scores = torch.cat([torch.ones(500), torch.zeros(999)])
    member = torch.arange(1499) < 500
    assert tpr_at(0.001, scores, member) is None
    assert tpr_at(0.01, scores, member) is not None
    found = roc_summary(AttackScores.of_one_model(scores, member), draws=10)
    assert found.tpr_at_01_percent is None
    assert found.tpr_at_1_percent is not None
    few = roc_summary(AttackScores.of_one_model(torch.arange(30.0), torch.arange(30) < 15), threshold=0.0)
    assert few.auc is few.accuracy is few.tpr_at_1_percent is None
    pooled = roc_summary(
        leave_one_out_scores(simulated(32, 200, 1.0)), draws=10
    )  # 3,200 predictions, but on only 200 images
    assert pooled.tpr_at_01_percent is None
    assert pooled.tpr_at_1_percent is not None


def test_one_false_positive_in_a_thousand_is_allowed_whatever_floating_point_says() -> None:
    negatives = torch.arange(100.0)
    scores = torch.cat([negatives, torch.tensor([70.5])])
    member = torch.arange(101) == 100
    found = tpr_at(0.29, scores, member)  # 0.29 · 100 = 28.999999999999996: 71 … 99 are 29 false positives
    assert found is not None
    assert found.value == 1.0


def test_the_interval_of_tpr_covers_the_truth_where_clopper_pearson_alone_does_not() -> None:
    """No leak at all: the truth is TPR = FPR = 1 %. 200 samples of 300 members and 300 non-members."""
    ours = naive = 0
    member = torch.arange(600) < 300
    for seed in range(200):
        scores = draws(600, seed=seed)
        found = tpr_at(0.01, scores, member)
        assert found is not None
        ours += found.low <= 0.01 <= found.high
        hits = round(found.value * 300)
        low = beta.ppf(0.025, hits, 301 - hits) if hits else 0.0
        naive += bool(low <= 0.01 <= beta.ppf(0.975, hits + 1, 300 - hits))
    assert ours >= 190
    assert naive < 185


def test_the_interval_of_tpr_against_a_slow_search() -> None:
    """400 non-members at 1 %: the true threshold lies under the a-th and not under the (b+1)-th highest of them."""
    scores, member = draws(700, seed=3).round(decimals=1), torch.arange(700) < 300
    found = tpr_at(0.01, scores, member)
    assert found is not None
    positives, negatives = scores[member].tolist(), sorted(scores[~member].tolist(), reverse=True)
    miss = 0.05 / 4
    a = max(count for count in range(20) if binom.cdf(count - 1, 400, 0.01) <= miss)
    b = min(count for count in range(20) if binom.sf(count, 400, 0.01) <= miss)
    low_hits = sum(score > negatives[a - 1] for score in positives) if a else 0
    high_hits = sum(score >= negatives[b] for score in positives)
    grid = [step / 20_000 for step in range(20_001)]
    low = max([0.0, *(p for p in grid if low_hits and binom.sf(low_hits - 1, 300, p) <= miss)])
    high = min([1.0, *(p for p in grid if binom.cdf(high_hits, 300, p) <= miss)])
    assert found.low == pytest.approx(low, abs=1e-4)
    assert found.high == pytest.approx(high, abs=1e-4)


def test_the_bootstrap_of_auc_covers_the_truth_and_is_about_as_wide_as_theory_says() -> None:
    member, truth = torch.arange(200) < 100, norm.cdf(1 / math.sqrt(2))
    found = [
        roc_summary(AttackScores.of_one_model(draws(200, seed=seed) + member, member), draws=200).auc
        for seed in range(40)
    ]
    covered = [one for one in found if one is not None and one.low <= truth <= one.high]
    assert len(covered) >= 34
    other = 2 * truth**2 / (1 + truth)
    theory = truth * (1 - truth) + 99 * (truth / (2 - truth) - truth**2) + 99 * (other - truth**2)  # Hanley, McNeil
    widths = [one.high - one.low for one in found if one is not None]
    assert sum(widths) / 40 == pytest.approx(2 * 1.96 * math.sqrt(theory / 100**2), rel=0.15)


def test_models_are_drawn_too() -> None:
    """A leak that differs from model to model has a wider interval than the number of predictions suggests."""
    seen = halves(200, 8, 0)
    steady = AttackScores(draws(8, 200, seed=1) + 1.0 * seen, seen, ~seen)
    varying = AttackScores(
        draws(8, 200, seed=1) + 1.0 * seen * torch.tensor([0, 0, 0, 0, 2, 2, 2, 2])[:, None], seen, ~seen
    )
    widths = []
    for scored in (steady, varying):
        found = roc_summary(scored, draws=200).auc
        assert found is not None
        widths.append(found.high - found.low)
    assert widths[1] > 2 * widths[0]


def test_the_intervals_are_those_of_a_slow_bootstrap() -> None:
    """Draw models and images, repeat every score as often as it was drawn, and measure that."""
    scores, seen = (3 * draws(6, 120, seed=5)).round() / 2, halves(120, 6, 1)
    unseen = ~seen & (draws(6, 120, seed=6) > -1)
    found = roc_summary(AttackScores(scores, seen, unseen), threshold=0.5, seed=9, draws=25)
    generator, rows = np.random.default_rng(9), []
    for _ in range(25):
        models, images = (torch.from_numpy(generator.choice(n, n)).bincount(minlength=n) for n in (6, 120))
        times = torch.outer(models, images)
        ours, theirs = (scores[kind].repeat_interleave(times[kind]) for kind in (seen, unseen))
        member = torch.arange(len(ours) + len(theirs)) < len(ours)
        false, true, _ = roc_curve(member, torch.cat([ours, theirs]), drop_intermediate=False)
        called = [((kind > 0.5).double() + 0.5 * (kind == 0.5)).mean() for kind in (ours, theirs)]
        rows.append([roc_auc_score(member, torch.cat([ours, theirs])), true[false <= 0.01].max()])
        rows[-1].append(float(called[0] + 1 - called[1]) / 2)
    table = torch.tensor(rows, dtype=torch.double)
    for index, figure in enumerate((found.auc, found.tpr_at_1_percent, found.accuracy)):
        assert figure is not None
        low, high = table[:, index].quantile(torch.tensor([0.025, 0.975], dtype=torch.double)).tolist()
        assert (figure.low, figure.high) == (pytest.approx(low), pytest.approx(high))


def test_bootstrap_samples_without_members_are_left_out() -> None:
    """The second model saw a single image: where it is drawn twice, and the image is not, there is no member."""
    seen = torch.zeros(2, 60, dtype=torch.bool)
    seen[0, :20] = seen[1, 20] = True
    found = roc_summary(AttackScores(draws(2, 60) + seen, seen, ~seen), draws=200).auc
    assert found is not None
    assert 0 < found.low < found.value < found.high <= 1


def test_accuracy_weighs_both_kinds_alike_and_ties_half() -> None:
    scores = torch.cat([torch.ones(30), torch.zeros(10), -torch.ones(100)])
    member = torch.arange(140) < 40
    found = roc_summary(AttackScores.of_one_model(scores, member), threshold=0.0, draws=20).accuracy
    assert found is not None
    assert found.value == pytest.approx((35 / 40 + 1) / 2)


def test_figures_are_the_same_for_the_same_seed_and_plain_values() -> None:
    scored = AttackScores.of_one_model(draws(100), torch.arange(100) < 50)
    first, again = roc_summary(scored, draws=50), roc_summary(scored, draws=50)
    assert first == again
    assert set(first.to_json()["auc"]) == {"value", "low", "high"}
    assert isinstance(first.auc, Interval)


def test_each_image_has_an_auc_of_its_own() -> None:
    scored = leave_one_out_scores(simulated(10, 7, shift=2.0))
    for image, found in enumerate(image_auc(scored).tolist()):
        assert found == pytest.approx(roc_auc_score(scored.seen[:, image], scored.scores[:, image]))
    unseen_by_all = AttackScores(torch.zeros(2, 1), torch.zeros(2, 1).bool(), torch.ones(2, 1).bool())
    assert math.isnan(float(image_auc(unseen_by_all)[0]))


def test_bad_scores_are_refused() -> None:
    with pytest.raises(NumericsError, match="finite"):
        AttackScores.of_one_model(torch.tensor([math.nan, 0.0]), torch.tensor([True, False]))
    with pytest.raises(RequestError, match="members and non-members"):
        auc(torch.zeros(3), torch.ones(3).bool())
    with pytest.raises(RequestError, match="must all be"):
        AttackScores(torch.zeros(2, 3), torch.zeros(2, 2).bool(), torch.zeros(2, 2).bool())
