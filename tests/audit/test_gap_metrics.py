"""Metrics that audits use, against slow loops; and beside them common mistakes, which give other numbers."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import famr
from audited import with_low_bias
from famr.data import Data
from famr.engine.inference import accuracy_on_images
from famr.evaluation.evaluate import compare
from famr.metrics.calibration import expected_calibration_error
from famr.metrics.forgetting import entropy
from famr.metrics.membership import mia_efficacy
from famr.metrics.retraining import js_divergence, klom, tug_of_war


def logits(rows: int, classes: int = 5, seed: int = 0, scale: float = 2.0) -> Tensor:
    return scale * torch.randn(rows, classes, generator=torch.Generator().manual_seed(seed))


def test_tug_of_war_is_a_product_of_agreements() -> None:
    ours, theirs = {"forget": 0.1, "retain": 0.9, "test": 0.8}, {"forget": 0.0, "retain": 0.95, "test": 0.85}
    assert tug_of_war(ours, theirs) == pytest.approx(0.9 * 0.95 * 0.95)
    with pytest.raises(ValueError, match="different measures"):
        tug_of_war(ours, {"forget": 0.0})


def test_klom_is_the_kl_of_histograms_counted_by_hand() -> None:
    ours = torch.tensor([[0.0, 250.0], [1.0, 250.0], [1.0, 3.0]])
    theirs = torch.tensor([[0.0, 3.0], [0.0, 3.0], [1.0, 3.0], [1.0, 3.0]])
    slow = []
    for column in range(2):
        u = [min(max(float(x), -100), 100) for x in ours[:, column]]
        r = [min(max(float(x), -100), 100) for x in theirs[:, column]]
        low, high = min(u + r), max(u + r)
        p, q = [0.0] * 20, [0.0] * 20
        for counts, values in ((p, u), (q, r)):
            for value in values:
                counts[min(19, int((value - low) / (high - low) * 20))] += 1 / len(values)
        total = 0.0
        for a, b in zip(p, q, strict=True):
            a, b = max(a, 1e-5), max(b, 1e-5)
            total += a * math.log(a / b)
        slow.append(total)
    assert klom(ours, theirs).tolist() == pytest.approx(slow, rel=1e-5)
    assert slow[1] > 5  # 250 is clipped, and in bins where no retrained model is


def test_klom_of_the_same_models_is_zero_and_of_constant_margins_too() -> None:
    margins = logits(6, 4)
    assert klom(margins, margins).abs().max() == 0
    assert klom(torch.ones(3, 2), torch.ones(5, 2)).abs().max() == 0


def test_calibration_error_against_a_loop() -> None:
    z, labels = logits(200), torch.randint(5, (200,), generator=torch.Generator().manual_seed(1))
    p = torch.softmax(z, dim=-1)
    total = 0.0
    for index in range(15):
        low, high = index / 15, (index + 1) / 15
        here = [i for i in range(200) if low < float(p[i].max()) <= high]
        if here:
            accuracy = sum(int(p[i].argmax()) == int(labels[i]) for i in here) / len(here)
            confidence = sum(float(p[i].max()) for i in here) / len(here)
            total += len(here) / 200 * abs(accuracy - confidence)
    assert expected_calibration_error(z, labels) == pytest.approx(total, rel=1e-4)
    confident_and_wrong = torch.eye(3)[[0, 1, 2]] * 100
    assert expected_calibration_error(confident_and_wrong, torch.tensor([1, 2, 0])) == pytest.approx(1.0)


def test_a_js_divergence_by_kl_div_with_its_defaults_is_another_number() -> None:
    """The copied form: arguments reversed, and the mean taken over classes as well."""
    p, q = torch.softmax(logits(4, seed=1), -1), torch.softmax(logits(4, seed=2), -1)
    m = (p + q) / 2
    with pytest.warns(UserWarning, match="reduction"):
        copied = 0.5 * F.kl_div(p.log(), m) + 0.5 * F.kl_div(q.log(), m)
    right = js_divergence(p.log(), q.log()).mean()
    slow = sum(
        0.5 * float(a) * math.log(float(a / c)) + 0.5 * float(b) * math.log(float(b / c))
        for row in range(4)
        for a, b, c in zip(p[row], q[row], m[row], strict=True)
    )
    assert float(right) == pytest.approx(slow / 4, rel=1e-5)
    assert float(copied) < 0.5 * float(right)


def test_probabilities_divided_by_the_sum_of_a_batch_are_another_number() -> None:
    """The copied form: p / p.sum() over all rows, where each row is to sum to one."""
    z = logits(8, seed=3)
    weights = (z - z.max()).exp()
    copied = weights / weights.sum()
    right = entropy(z)
    for row in range(8):
        p = [float(w) / float(weights[row].sum()) for w in weights[row]]
        assert float(right[row]) == pytest.approx(-sum(x * math.log(x) for x in p), rel=1e-5)
    assert float(torch.special.entr(copied).sum(dim=-1).mean()) < 0.6 * float(right.mean())


def test_an_attack_trained_on_the_forget_set_only_repeats_its_labels() -> None:
    """The copied form: the forget set among the non-members that it learns from, and then scored on it."""
    draws = torch.Generator().manual_seed(0)
    members, non_members = (torch.rand(150, generator=draws) * 0.1 + low for low in (0.9, 0.4))
    forget = torch.rand(150, generator=draws) * 0.1 + 0.9  # as confident as about members: nothing was forgotten
    assert mia_efficacy(members, non_members, forget) == 0.0
    repeated = mia_efficacy(members[:30], torch.cat([non_members[:5], forget]), forget)
    assert repeated > 0.2


def test_held_out_accuracy_with_the_forgotten_class_in_it_is_another_number(
    original: famr.Classifier, digits: Data, without_three: famr.Splits
) -> None:
    """The copied form counts every three among the test images against a model that no longer predicts threes."""
    hidden = with_low_bias(original)
    assert digits.test is not None
    threes = float((digits.test.targets == 3).float().mean())
    retained = compare(original, hidden, None, without_three, device="cpu").unlearned.retain_accuracy
    copied = accuracy_on_images(hidden, digits.test, torch.device("cpu"))
    assert retained is not None
    assert retained > 0.9
    assert copied == pytest.approx((1 - threes) * retained, abs=1e-6)
    assert threes > 0.05
