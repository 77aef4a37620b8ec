"""LiRA and the figures of an attack: against closed forms, slow loops, scikit-learn, and variants that are wrong."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import norm
from torch import Tensor

from famr.audit.lira import (
    THRESHOLD,
    ShadowConfidences,
    leave_one_out_scores,
    lira_scores,
    normals,
    scaled_confidence,
)
from famr.audit.roc import auc, roc_summary
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


# φ


def test_phi_is_the_log_odds_of_the_true_class() -> None:
    logits, targets = 3 * draws(2, 20, 5), torch.arange(20) % 5
    phi = scaled_confidence(logits, targets)
    for model in range(2):
        for image in range(20):
            weights = [math.exp(z) for z in logits[model, image].tolist()]
            p = weights[targets[image]] / sum(weights)
            assert float(phi[model, image]) == pytest.approx(math.log(p / (1 - p)))


def test_phi_of_sure_answers_is_finite_where_probabilities_round_to_one() -> None:
    logits = torch.tensor([[40.0, 0.0, 0.0], [60.0, 0.0, 0.0]])
    p = torch.softmax(logits, dim=-1)[:, 0]
    assert torch.isinf(torch.log(p / (1 - p))).all()  # the copied formula
    assert scaled_confidence(logits, torch.tensor([0, 0])).tolist() == pytest.approx(
        [40 - math.log(2), 60 - math.log(2)]
    )


def test_phi_needs_classes_and_finite_answers() -> None:
    with pytest.raises(RequestError, match="class of every image"):
        scaled_confidence(torch.zeros(1, 3), torch.tensor([-1]))
    with pytest.raises(NumericsError, match="finite"):
        scaled_confidence(torch.tensor([[math.nan, 0.0]]), torch.tensor([0]))


# the normals and the two attacks


def test_normals_against_a_loop() -> None:
    shadows = simulated(8, 6, shift=1.0)
    mean, own = normals(shadows.phi, shadows.seen, shared=False)
    _, shared = normals(shadows.phi, shadows.seen, shared=True)
    squares, freedom = 0.0, 0
    for image in range(6):
        values = [float(shadows.phi[model, image]) for model in range(8) if shadows.seen[model, image]]
        middle = sum(values) / len(values)
        around = sum((value - middle) ** 2 for value in values)
        assert float(mean[image]) == pytest.approx(middle)
        assert float(own[image]) == pytest.approx(math.sqrt(around / (len(values) - 1)))
        squares, freedom = squares + around, freedom + len(values) - 1
    assert shared.tolist() == pytest.approx([math.sqrt(squares / freedom)] * 6)


def test_the_spread_of_all_images_together_is_another_number_and_a_weaker_attack() -> None:
    shadows = simulated(32, 400, shift=1.5)
    target_phi, member = 4 * draws(400, seed=1) + draws(400, seed=9), torch.arange(400) % 2 == 0
    target_phi = target_phi + 1.5 * member
    _, spread = normals(shadows.phi, shadows.unseen, shared=True)
    assert float(spread[0]) == pytest.approx(1.0, abs=0.05)
    assert float(shadows.phi.std()) > 3.5  # what one std() over the whole matrix gives
    right = auc(lira_scores(target_phi, shadows), member)
    raw = auc(target_phi, member)  # no calibration by image
    assert right == pytest.approx(norm.cdf(1.5 / math.sqrt(2)), abs=0.05)
    assert raw < right - 0.15


@pytest.mark.parametrize("shared", [True, False])
def test_online_is_the_ratio_of_two_normal_densities(shared: bool) -> None:
    shadows, phi = simulated(10, 30, shift=1.0), draws(30, seed=5)
    (mean_in, std_in), (mean_out, std_out) = (
        normals(shadows.phi, kind, shared) for kind in (shadows.seen, shadows.unseen)
    )
    expected = norm.logpdf(phi, mean_in, std_in) - norm.logpdf(phi, mean_out, std_out)
    assert lira_scores(phi, shadows, shared=shared).tolist() == pytest.approx(expected.tolist())


def test_offline_is_one_sided() -> None:
    shadows = simulated(64, 300, shift=0.0)
    mean, std = normals(shadows.phi, shadows.unseen, shared=False)
    member = torch.arange(300) < 150
    phi = mean + std * (draws(300, seed=4) * torch.where(member, 1.0, 3.0) + 2.0 * member)  # non-members spread wide
    scores = lira_scores(phi, shadows, "offline")
    assert norm.cdf(scores).tolist() == pytest.approx((1 - norm.sf(phi, mean, std)).tolist())
    two_sided = -torch.from_numpy(norm.logpdf(phi, mean, std))  # calls whatever is unusual a member
    assert auc(scores, member) > 0.7
    assert auc(two_sided, member) < 0.5


def test_far_from_the_normals_offline_still_ranks() -> None:
    """As a probability it rounds to 1, and the surest members tie."""
    shadows = simulated(8, 2, shift=0.0)
    scores = lira_scores(shadows.phi.mean(dim=0) + torch.tensor([20.0, 40.0]), shadows, "offline")
    assert norm.cdf(scores).tolist() == [1.0, 1.0]
    assert scores[1] > scores[0] + 10


def test_models_that_all_say_the_same_do_not_divide_by_zero() -> None:
    seen = halves(4, 6, 0)
    scores = lira_scores(torch.zeros(4), ShadowConfidences.of_trained(torch.zeros(6, 4), seen))
    assert scores.tolist() == [0.0] * 4


def test_too_few_shadows_are_refused() -> None:
    with pytest.raises(RequestError, match="fewer than two models"):
        lira_scores(torch.zeros(6), simulated(2, 6, 0.0))
    with pytest.raises(RequestError, match="fewer than three models"):
        leave_one_out_scores(simulated(4, 6, 0.0))
    with pytest.raises(RequestError, match="both seen and unseen"):
        ShadowConfidences(torch.zeros(2, 2), torch.ones(2, 2).bool(), torch.ones(2, 2).bool())


# a population attacked model by model


def test_left_out_against_a_slow_loop() -> None:
    shadows = simulated(8, 5, shift=1.0)
    scored = leave_one_out_scores(shadows, shared=False)
    for image in range(5):
        inside = [model for model in range(8) if shadows.seen[model, image]]
        outside = [model for model in range(8) if not shadows.seen[model, image]]
        for rank in range(4):
            value = {
                name: torch.tensor(
                    [float(shadows.phi[m, image]) for m in kind if m not in (inside[rank], outside[rank])]
                )
                for name, kind in (("in", inside), ("out", outside))
            }
            for model in (inside[rank], outside[rank]):
                phi = float(shadows.phi[model, image])
                logs = {name: norm.logpdf(phi, v.double().mean(), v.double().std()) for name, v in value.items()}
                assert float(scored.scores[model, image]) == pytest.approx(logs["in"] - logs["out"], rel=1e-4)


def test_without_a_leak_the_attack_guesses_and_wrongly_calibrated_attacks_do_not() -> None:
    shadows = simulated(8, 4000, shift=0.0)
    member = shadows.seen.flatten()
    assert auc(leave_one_out_scores(shadows).scores.flatten(), member) == pytest.approx(0.5, abs=0.01)

    left_in = torch.stack([lira_scores(phi, shadows) for phi in shadows.phi])
    assert auc(left_in.flatten(), member) > 0.55  # trained on the very answers it is scored on

    alone = []
    for model, phi in enumerate(shadows.phi):
        remaining = torch.arange(8) != model
        rest = ShadowConfidences(shadows.phi[remaining], shadows.seen[remaining], shadows.unseen[remaining])
        alone.append(lira_scores(phi, rest))
    assert auc(torch.stack(alone).flatten(), member) < 0.485  # one model fewer on its own side


@pytest.mark.parametrize("shift", [0.5, 2.0])
def test_a_known_shift_gives_the_figures_of_two_normals(shift: float) -> None:
    """With many models: AUC Φ(d/√2), accuracy Φ(d/2), TPR Φ(d − z) at the FPR of z."""
    found = roc_summary(leave_one_out_scores(simulated(64, 1500, shift)), threshold=THRESHOLD, draws=20)
    assert found.auc is not None
    assert found.accuracy is not None
    assert found.tpr_at_1_percent is not None
    assert found.auc.value == pytest.approx(norm.cdf(shift / math.sqrt(2)), abs=0.015)
    assert found.accuracy.value == pytest.approx(norm.cdf(shift / 2), abs=0.015)
    assert found.tpr_at_1_percent.value == pytest.approx(norm.cdf(shift - norm.isf(0.01)), abs=0.04)
    assert found.members == found.non_members == 32 * 1500


def test_with_shuffled_membership_the_attack_guesses() -> None:
    shadows = simulated(16, 500, shift=3.0)
    assert auc(leave_one_out_scores(shadows).scores.flatten(), shadows.seen.flatten()) > 0.95
    shuffled = ShadowConfidences.of_trained(
        shadows.phi, shadows.seen[torch.randperm(16, generator=torch.Generator().manual_seed(1))]
    )
    mixed = halves(500, 16, seed=77)  # another draw of the same design
    assert auc(
        leave_one_out_scores(ShadowConfidences.of_trained(shadows.phi, mixed)).scores.flatten(), mixed.flatten()
    ) == pytest.approx(0.5, abs=0.02)
    assert auc(leave_one_out_scores(shuffled).scores.flatten(), shuffled.seen.flatten()) == pytest.approx(0.5, abs=0.1)


def test_unlearned_models_are_set_against_retrained_ones_only() -> None:
    seen = halves(300, 8, 0)
    level = 4 * draws(300, seed=1)
    retrained = level + draws(4, 300, seed=2)
    unlearned = level + draws(8, 300, seed=3) + torch.where(seen, -2.0, 50.0)  # forgot too much; the rest is nonsense
    shadows = ShadowConfidences.of_unlearned(unlearned, seen, retrained)
    assert shadows.seen.sum(dim=0).tolist() == shadows.unseen.sum(dim=0).tolist() == [4] * 300
    found = roc_summary(leave_one_out_scores(shadows), threshold=THRESHOLD, draws=50)
    assert found.accuracy is not None
    assert 0.7 < found.accuracy.low < found.accuracy.value < found.accuracy.high < 0.9  # Φ(1) = 0.84 with all models


def test_unlearned_models_that_are_like_retrained_ones_are_not_told_apart() -> None:
    found, covered = 0.0, 0
    for seed in range(10):
        seen, level = halves(300, 8, seed), 4 * draws(300, seed=seed)
        same = ShadowConfidences.of_unlearned(
            level + draws(8, 300, seed=seed + 20), seen, level + draws(4, 300, seed=seed + 40)
        )
        accuracy = roc_summary(leave_one_out_scores(same), threshold=THRESHOLD, draws=100).accuracy
        assert accuracy is not None
        found += accuracy.value / 10
        covered += accuracy.low <= 0.5 <= accuracy.high
    assert found == pytest.approx(0.5, abs=0.015)
    assert covered >= 9
