"""The five metrics and the gaps, against slow loops and other libraries."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.spatial.distance
import scipy.stats
import sklearn.metrics
import torch
from torch import nn

import famr
from conftest import alg1
from famr.data import Data
from famr.errors import CheckpointError, RequestError
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
    original, now = random(6, 5), random(6, 5, seed=1)
    np.testing.assert_allclose(
        kl_divergence(original, now), scipy.stats.entropy(softmax(original), softmax(now), axis=1)
    )
    assert not torch.allclose(kl_divergence(original, now), kl_divergence(now, original))


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


def test_metrics_of_a_uniform_answer_have_their_textbook_values() -> None:
    flat = torch.zeros(6, 5)
    assert float(entropy(flat).mean()) == pytest.approx(math.log(5))
    assert float(cross_entropy(flat, LABELS).mean()) == pytest.approx(math.log(5))


def test_score_agrees_with_a_loop_over_images() -> None:
    original, forget, test = random(6, 5), random(6, 5, seed=1), random(6, 5, seed=2)
    found = score(Predictions(forget, LABELS), Predictions(original, LABELS), Predictions(test, LABELS), None)
    loss = surprise = moved = 0.0
    for before, after, label in zip(softmax(original), softmax(forget), LABELS.tolist(), strict=True):
        loss -= math.log(after[label]) / 6
        surprise -= sum(p * math.log(p) for p in after) / 6
        moved += sum(p * math.log(p / q) for p, q in zip(before, after, strict=True)) / 6
    assert found.forget_cross_entropy == pytest.approx(loss)
    assert found.forget_entropy == pytest.approx(surprise)
    assert found.forget_kl == pytest.approx(moved)
    assert found.retain_accuracy == pytest.approx(np.mean(test.argmax(dim=-1).numpy() == LABELS.numpy()))
    assert found.forget_test_accuracy is None
    assert found.counts == {"retain": 6, "forget": 6, "forget_test": None}


@pytest.fixture(scope="module")
def result(original: famr.Classifier, without_three: famr.Splits) -> famr.Unlearned:
    return famr.forget(original, without_three, alg1(learning_rate=3e-4), device="cpu")


def test_retained_accuracy_leaves_the_forgotten_class_out(
    result: famr.Unlearned, without_three: famr.Splits, digits: Data
) -> None:
    scores = famr.evaluate(result, without_three, device="cpu")
    assert digits.test is not None
    threes = int((digits.test.targets == 3).sum())
    assert scores.unlearned.counts == {
        "retain": len(digits.test) - threes,
        "forget": int((digits.train.targets == 3).sum()),
        "forget_test": threes,
    }


def test_forgetting_shows_in_every_metric(result: famr.Unlearned, without_three: famr.Splits) -> None:
    scores = famr.evaluate(result, without_three, device="cpu")
    before, after = scores.original, scores.unlearned
    assert before is not None
    assert before.forget_kl == pytest.approx(0, abs=1e-6)
    assert after.forget_accuracy < 0.2 < 0.8 < before.forget_accuracy  # type: ignore[operator]
    assert after.forget_entropy > before.forget_entropy + 1
    assert after.forget_kl > 1  # type: ignore[operator]
    assert after.forget_cross_entropy > before.forget_cross_entropy + 1  # type: ignore[operator]


def test_the_last_line_of_the_history_is_the_final_measurement(
    result: famr.Unlearned, without_three: famr.Splits
) -> None:
    scores, last = famr.evaluate(result, without_three, device="cpu").unlearned, result.history[-1]
    for name in ("retain_accuracy", "forget_accuracy", "forget_cross_entropy", "forget_entropy", "forget_kl"):
        assert getattr(last, name) == pytest.approx(getattr(scores, name), abs=1e-6), name


def test_without_a_retrained_model_gaps_are_not_available(result: famr.Unlearned, without_three: famr.Splits) -> None:
    scores = famr.evaluate(result, without_three, device="cpu")
    assert scores.retrained is None
    assert scores.gap is None
    assert scores.not_available["gap"] == "no retrained checkpoint was given"


def test_gaps_are_distances_to_the_retrained_model(
    result: famr.Unlearned, original: famr.Classifier, without_three: famr.Splits
) -> None:
    scores = famr.evaluate(result, without_three, retrained=original, device="cpu")
    assert scores.gap is not None
    assert scores.retrained is not None
    assert scores.gap["forget_accuracy"] == pytest.approx(
        scores.retrained.forget_accuracy - scores.unlearned.forget_accuracy  # type: ignore[operator]
    )
    assert 0 < scores.gap["forget_js_divergence"] < math.log(2)  # type: ignore[operator]
    assert all(value is not None for value in scores.gap.values())
    assert len(scores.gap) == 7
    assert "gap" not in scores.not_available


def test_samples_have_no_held_out_counterpart(original: famr.Classifier, digits: Data) -> None:
    splits = famr.split(digits, famr.Request(samples=[0, 5, 9]))
    result = famr.forget(original, splits, alg1(epochs=1), device="cpu")
    scores = famr.evaluate(result, splits, device="cpu")
    assert scores.unlearned.forget_test_accuracy is None
    assert "no held-out counterpart" in scores.not_available["forget_test_accuracy"]
    assert scores.unlearned.counts["retain"] == len(digits.test)  # type: ignore[arg-type]


def test_images_alone_are_enough_and_the_rest_is_not_available(original: famr.Classifier, digits: Data) -> None:
    threes = digits.train.where(digits.train.targets == 3)
    splits = famr.forget_only(threes)
    result = famr.forget(original, splits, alg1(epochs=2), device="cpu")
    scores = famr.evaluate(result, splits, device="cpu")
    assert scores.unlearned.retain_accuracy is None
    assert scores.unlearned.forget_accuracy is not None
    assert set(scores.not_available) == {"retain_accuracy", "forget_test_accuracy", "retrained", "gap"}


def test_images_without_labels_are_forgotten_but_not_scored_by_label(original: famr.Classifier, digits: Data) -> None:
    threes = digits.train.where(digits.train.targets == 3).with_targets([-1] * 10)
    splits = famr.forget_only(threes)
    result = famr.forget(original, splits, alg1(epochs=2), device="cpu")
    scores = famr.evaluate(result, splits, device="cpu")
    assert scores.unlearned.forget_accuracy is None
    assert scores.unlearned.forget_cross_entropy is None
    assert scores.unlearned.forget_entropy > scores.original.forget_entropy  # type: ignore[union-attr]
    assert scores.not_available["forget_accuracy"] == "the forget images have no labels"


def test_a_retrained_model_of_other_classes_is_refused(
    result: famr.Unlearned, original: famr.Classifier, without_three: famr.Splits
) -> None:
    other = replace(original, labels=tuple("abcdefghij"))
    with pytest.raises(CheckpointError, match="retrained model names other classes"):
        famr.evaluate(result, without_three, retrained=other, device="cpu")


def test_a_module_that_does_not_say_how_it_wants_images_is_refused(without_three: famr.Splits) -> None:
    with pytest.raises(RequestError, match="preprocessing of this network"):
        famr.forget(nn.Sequential(nn.Flatten(), nn.Linear(768, 10)), without_three)
