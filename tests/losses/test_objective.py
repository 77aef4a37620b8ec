"""Eq. (1)–(5) against closed forms and slow loops."""

from __future__ import annotations

import math

import pytest
import torch

from famr.losses.objective import (
    combine,
    drift_bound,
    gram_matrix,
    l2_penalty,
    logit_excess,
    reduce,
    style_distance,
    target_kl,
    uniform_target,
)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_gradient_of_the_uniform_kl_in_the_logits_is_p_minus_u() -> None:
    logits = random(6, 10).requires_grad_()
    target_kl(logits, uniform_target(10)).sum().backward()
    expected = torch.softmax(logits.detach(), dim=-1) - 0.1
    torch.testing.assert_close(logits.grad, expected, atol=1e-8, rtol=0)


def test_gradient_for_any_target_in_the_logits_is_p_minus_q() -> None:
    logits = random(6, 10).requires_grad_()
    target = torch.softmax(random(6, 10, seed=1), dim=-1)
    target_kl(logits, target).sum().backward()
    torch.testing.assert_close(logits.grad, torch.softmax(logits.detach(), dim=-1) - target)


def test_uniform_kl_agrees_with_a_loop_over_the_definition() -> None:
    logits = random(4, 7)
    for row, kl in zip(logits, target_kl(logits, uniform_target(7)), strict=True):
        p = [math.exp(z) / sum(math.exp(other) for other in row.tolist()) for z in row.tolist()]
        assert float(kl) == pytest.approx(sum(1 / 7 * math.log((1 / 7) / value) for value in p), abs=1e-7)


def test_uniform_kl_agrees_with_torch_distributions() -> None:
    logits = random(4, 7)
    uniform = torch.distributions.Categorical(probs=uniform_target(7).double())
    expected = torch.distributions.kl_divergence(uniform, torch.distributions.Categorical(logits=logits))
    torch.testing.assert_close(target_kl(logits, uniform_target(7).double()), expected)


def test_uniform_kl_is_zero_only_at_the_uniform_prediction() -> None:
    assert float(target_kl(torch.full((1, 9), 3.0), uniform_target(9))) == pytest.approx(0, abs=1e-6)
    assert float(target_kl(torch.tensor([[3.0, 3.0, 3.1]]), uniform_target(3))) > 1e-4


def test_uniform_kl_of_a_confident_prediction_is_finite_in_half_precision() -> None:
    logits = torch.tensor([[60.0, -60.0]], dtype=torch.bfloat16)
    assert float(target_kl(logits, uniform_target(2))) == pytest.approx(60 - math.log(2), rel=1e-3)


def test_gram_matrix_agrees_with_a_loop_over_positions() -> None:
    features = random(2, 3, 5)
    for image, gram in zip(features, gram_matrix(features), strict=True):
        expected = sum(torch.outer(image[:, position], image[:, position]) for position in range(5))
        torch.testing.assert_close(gram, expected)


def test_gram_matrix_does_not_depend_on_the_order_of_positions() -> None:
    features = random(2, 3, 5)
    torch.testing.assert_close(gram_matrix(features), gram_matrix(features[..., [4, 2, 0, 1, 3]]))


def test_style_loss_is_zero_only_at_its_target() -> None:
    gram = gram_matrix(random(1, 3, 5))
    assert float(style_distance(gram, gram[0])) == 0
    assert float(style_distance(gram, gram[0] + 0.01)) > 0


@pytest.mark.parametrize(("classes", "forgotten"), [(10, [3]), (13, [0, 12, 5]), (2, [1]), (9, [8])])
def test_logit_excess_is_the_squared_distance_to_the_lowest_quarter_of_the_remaining_logits(
    classes: int, forgotten: list[int]
) -> None:
    logits = (3 * random(20, classes)).requires_grad_()
    expected, gradient = [], torch.zeros(20, classes, dtype=torch.float64)
    for image, row in enumerate(logits.tolist()):
        remaining = sorted(value for index, value in enumerate(row) if index not in forgotten)
        quartile = next(v for v in remaining if sum(other <= v for other in remaining) >= len(remaining) / 4)
        excess = {index: max(0.0, row[index] - quartile) for index in forgotten}
        expected.append(sum(value**2 for value in excess.values()))
        for index, value in excess.items():
            gradient[image, index] = 2 * value  # the quartile has no gradient
    losses = logit_excess(logits, torch.tensor(forgotten))
    assert losses.tolist() == pytest.approx(expected)
    losses.sum().backward()
    torch.testing.assert_close(logits.grad, gradient)


def test_style_loss_is_the_squared_frobenius_norm() -> None:
    gram, target = random(3, 4, 4), random(4, 4, seed=1)
    expected = torch.stack([torch.linalg.matrix_norm(one - target) ** 2 for one in gram])
    torch.testing.assert_close(style_distance(gram, target), expected)


def test_mean_reduction_is_the_sum_divided_by_the_images() -> None:
    values = random(11)
    torch.testing.assert_close(reduce(values, "sum"), 11 * reduce(values, "mean"))


def test_alpha_and_beta_weigh_the_two_losses() -> None:
    kl, style = torch.tensor(2.0), torch.tensor(5.0)
    assert float(combine(kl, style, alpha=3.0, beta=0.1)) == pytest.approx(6.5)
    assert float(combine(kl, None, alpha=3.0, beta=0.1)) == pytest.approx(6.0)


def test_l2_penalty_is_half_the_squared_distance_over_all_tensors() -> None:
    theta, theta_0 = [random(3, 2), random(4, seed=1)], [random(3, 2, seed=2), random(4, seed=3)]
    flat = torch.cat([(a - b).flatten() for a, b in zip(theta, theta_0, strict=True)])
    torch.testing.assert_close(l2_penalty(theta, theta_0), 0.5 * flat.norm() ** 2)


def test_there_is_no_drift_bound_without_an_anchor_or_where_the_loss_rose() -> None:
    assert drift_bound(2.0, 1.0, strength=0.0) is None
    assert drift_bound(1.0, 2.0, strength=1.0) is None
