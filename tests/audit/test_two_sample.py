"""The classifier two-sample test: it sees whole predictions, finds what a few features cannot, and no twin."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from famr.audit import two_sample
from famr.audit.two_sample import FEATURES, LOWEST, neighbour_order, prediction_features, two_sample_test
from famr.errors import RequestError
from made_up import random_logits

IMAGES, CLASSES = 150, 10
IN_ORDER = torch.arange(CLASSES).expand(IMAGES, CLASSES)


def test_features_are_entropy_margin_neighbour_mass_then_mass_by_distance_and_probabilities_by_size() -> None:
    z = torch.tensor([[3.0, 0.0, 1.0]])
    log_p = torch.log_softmax(z, dim=-1)[0].tolist()
    p = [math.exp(value) for value in log_p]
    found = prediction_features(z, torch.tensor([[1, 2, 0]]))[0].tolist()  # class 1 is the true one, 2 the nearest
    named = [-sum(x * math.log(x) for x in p), 2.0, p[2] + p[0]]
    by_distance, by_size = [log_p[2], math.log(p[2] + p[0])], [log_p[0], log_p[2], log_p[1]]
    assert found == pytest.approx([*named, *by_distance, *by_size], rel=1e-5)


def test_a_probability_of_nothing_is_a_finite_feature() -> None:
    z = torch.tensor([[0.0, -math.inf, -1e30]])
    found = prediction_features(z, torch.tensor([[0, 1, 2]]))
    assert bool(torch.isfinite(found).all())
    assert float(found.min()) == LOWEST


def test_neighbours_are_those_of_the_class_on_average_and_the_own_class_comes_first() -> None:
    z, targets = random_logits(60, 4, seed=3), torch.arange(60) % 3
    for image, order in enumerate(neighbour_order(z, targets).tolist()):
        label = int(targets[image])
        alike = [
            torch.softmax(z[i].index_fill(0, targets[i], -torch.inf), -1) for i in range(60) if targets[i] == label
        ]
        likely = (sum(alike) / len(alike)).tolist()  # type: ignore[union-attr]
        slow = sorted((other for other in range(4) if other != label), key=lambda other: -likely[other])
        assert order == [label, *slow]


def test_uniform_predictions_are_told_apart_and_a_twin_is_not() -> None:
    retrained = [random_logits(IMAGES, CLASSES, seed, scale=3.0) for seed in (1, 2)]
    twin = random_logits(IMAGES, CLASSES, seed=3, scale=3.0)
    uniform = random_logits(IMAGES, CLASSES, seed=4, scale=0.05)
    caught = two_sample_test(uniform, retrained, IN_ORDER)
    assert caught.auc > 0.99
    assert caught.by_feature["entropy"] > 0.99
    found = two_sample_test(twin, retrained, IN_ORDER)
    assert found.low <= 0.5 <= found.high + 0.05
    assert 0.4 < found.auc < 0.6


def falling(seed: int, *least: float) -> Tensor:
    """Logits that fall from class to class, down to the given ones, with a little noise."""
    noise = 0.2 * random_logits(IMAGES, CLASSES, seed, scale=1.0)
    return torch.tensor([0.0, 6.0, 4.0, 3.0, 2.0, 1.0, 0.5, 0.2, *least]) + noise


def test_a_difference_that_entropy_margin_and_neighbour_mass_cannot_show_is_found() -> None:
    """In the least likely class alone."""
    retrained = [falling(seed, -4.0, -8.0) for seed in (1, 2, 3)]
    found = two_sample_test(falling(4, -4.0, -7.0), retrained, IN_ORDER)
    assert max(found.by_feature.values()) < 0.6
    assert tuple(found.by_feature) == FEATURES
    assert found.low > 0.95


def test_which_far_class_a_training_prefers_tells_nothing() -> None:
    """Every training prefers others: with single classes in view, any retrained model is told from any other."""
    retrained = [falling(seed, -4.0, -8.0) for seed in (1, 2, 3)]
    other = falling(4, -4.0, -8.0)[:, [*range(8), 9, 8]]
    assert two_sample_test(other, retrained, IN_ORDER).low < 0.55


def test_the_attack_does_not_memorise_single_images() -> None:
    """With an image in both training and test part, a copy of the retrained predictions would be told apart."""
    retrained = [random_logits(100, CLASSES, seed=1)]
    found = two_sample_test(retrained[0].clone(), retrained, IN_ORDER[:100])
    assert found.auc == pytest.approx(0.5, abs=0.05)


def test_the_same_seed_gives_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(two_sample, "FOLDS", 2)
    retrained, ours = [random_logits(25, CLASSES, seed=1)], random_logits(25, CLASSES, seed=2)
    first, again, other = (two_sample_test(ours, retrained, IN_ORDER[:25], seed) for seed in (0, 0, 1))
    assert first == again != other


def test_too_few_images_are_refused() -> None:
    with pytest.raises(RequestError, match="at least 20 images, got 10"):
        two_sample_test(random_logits(10), [random_logits(10, seed=1)], torch.arange(5).expand(10, 5))
