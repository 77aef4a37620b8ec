"""The five metrics and the JS divergence, against slow loops and other libraries."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.spatial.distance
import scipy.stats
import sklearn.metrics
import torch
from torch import nn

from famr.metrics.forgetting import correct, cross_entropy, entropy, kl_divergence
from famr.metrics.predictions import Predictions
from famr.metrics.retraining import js_divergence
from famr.metrics.scores import score


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return 3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


LABELS = torch.tensor([0, 3, 2, 2, 1, 4])


def softmax(logits: torch.Tensor) -> np.ndarray:
    return torch.softmax(logits, dim=-1).numpy()


def test_accuracy_agrees_with_scikit_learn() -> None:
    logits = random(6, 5)
    expected = sklearn.metrics.accuracy_score(LABELS, logits.argmax(dim=-1))
    assert float(correct(logits, LABELS).mean()) == pytest.approx(expected)


def test_cross_entropy_agrees_with_scikit_learn() -> None:
    logits = random(6, 5)
    expected = sklearn.metrics.log_loss(LABELS, softmax(logits), labels=range(5))
    assert float(cross_entropy(logits, LABELS).mean()) == pytest.approx(expected)


def test_entropy_agrees_with_scipy() -> None:
    logits = random(6, 5)
    np.testing.assert_allclose(entropy(logits), scipy.stats.entropy(softmax(logits), axis=1))


def test_kl_runs_from_the_original_to_the_model() -> None:
    original, unlearned = random(6, 5), random(6, 5, seed=1)
    np.testing.assert_allclose(
        kl_divergence(original, unlearned), scipy.stats.entropy(softmax(original), softmax(unlearned), axis=1)
    )
    assert not torch.allclose(kl_divergence(original, unlearned), kl_divergence(unlearned, original))


def test_metrics_of_a_uniform_prediction_have_their_closed_form() -> None:
    flat = torch.zeros(6, 5)
    assert float(entropy(flat).mean()) == pytest.approx(math.log(5))
    assert float(cross_entropy(flat, LABELS).mean()) == pytest.approx(math.log(5))


def test_js_agrees_with_scipy_and_is_symmetric() -> None:
    one, other = random(6, 5), random(6, 5, seed=1)
    expected = scipy.spatial.distance.jensenshannon(softmax(one), softmax(other), axis=1) ** 2
    np.testing.assert_allclose(js_divergence(one, other), expected)
    torch.testing.assert_close(js_divergence(one, other), js_divergence(other, one))


def test_js_by_the_shortcut_of_many_repositories_gives_another_number() -> None:
    """kl_div(log p, m) with its default mean is reversed and divided by the number of classes."""
    one, other = random(6, 5), random(6, 5, seed=1)
    p, q = torch.softmax(one, dim=-1), torch.softmax(other, dim=-1)
    shortcut = sum(nn.functional.kl_div(x.log(), (p + q) / 2, reduction="none").mean() for x in (p, q)) / 2
    assert not math.isclose(float(shortcut), float(js_divergence(one, other).mean()), rel_tol=0.1)


def test_score_agrees_with_a_loop_over_images() -> None:
    original, forget, test = random(6, 5), random(6, 5, seed=1), random(6, 5, seed=2)
    scores = score(Predictions(forget, LABELS), Predictions(original, LABELS), Predictions(test, LABELS), None)
    cross_entropies = entropies = divergences = 0.0
    for before, after, label in zip(softmax(original), softmax(forget), LABELS.tolist(), strict=True):
        cross_entropies -= math.log(after[label]) / 6
        entropies -= sum(p * math.log(p) for p in after) / 6
        divergences += sum(p * math.log(p / q) for p, q in zip(before, after, strict=True)) / 6
    assert scores.forget_cross_entropy == pytest.approx(cross_entropies)
    assert scores.forget_entropy == pytest.approx(entropies)
    assert scores.forget_kl == pytest.approx(divergences)
    assert scores.retain_accuracy == pytest.approx(np.mean(test.argmax(dim=-1).numpy() == LABELS.numpy()))
    assert scores.forget_test_accuracy is None
    assert scores.counts == {"retain": 6, "forget": 6, "forget_test": None}
