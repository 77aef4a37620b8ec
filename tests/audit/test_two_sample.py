"""The classifier two-sample test: it finds uniform predictions, and does not tell a twin apart."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from famr.audit.two_sample import prediction_features, two_sample_test
from famr.errors import RequestError


def logits(rows: int, classes: int = 5, seed: int = 0, scale: float = 2.0) -> Tensor:
    return scale * torch.randn(rows, classes, generator=torch.Generator().manual_seed(seed))


def test_features_are_entropy_margin_and_neighbour_mass() -> None:
    z = torch.tensor([[3.0, 1.0, 0.0]])
    p = torch.softmax(z, dim=-1)[0].tolist()
    expected = [-sum(x * math.log(x) for x in p), 2.0, p[1] + p[2]]
    assert prediction_features(z, torch.tensor([1, 2]))[0].tolist() == pytest.approx(expected, rel=1e-5)


def test_uniform_predictions_are_told_apart_and_a_twin_is_not() -> None:
    near = torch.tensor([0, 1])
    retrained = [logits(150, 10, seed, scale=3.0) for seed in (1, 2)]
    twin = logits(150, 10, seed=3, scale=3.0)
    uniform = logits(150, 10, seed=4, scale=0.05)
    assert two_sample_test(uniform, retrained, near).auc > 0.99
    found = two_sample_test(twin, retrained, near)
    assert found.low <= 0.5 <= found.high + 0.05
    assert 0.4 < found.auc < 0.6
    assert two_sample_test(uniform, retrained, near).by_feature["entropy"] > 0.99


def test_the_attack_does_not_memorise_single_images() -> None:
    """With an image in both training and test part, a copy of the retrained predictions would be told apart."""
    retrained = [logits(100, 10, seed=1)]
    found = two_sample_test(retrained[0].clone(), retrained, torch.tensor([0]))
    assert found.auc == pytest.approx(0.5, abs=0.05)


def test_too_few_images_are_refused() -> None:
    with pytest.raises(RequestError, match="at least 20 images, got 10"):
        two_sample_test(logits(10), [logits(10, seed=1)], torch.tensor([0]))
