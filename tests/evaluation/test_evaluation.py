"""Evaluation of an unlearned model, and its gaps to a retrained one."""

from __future__ import annotations

import math
import os
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import famr
from conftest import alg1
from famr.data import Data
from famr.errors import CheckpointError, RequestError


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


def test_the_last_epoch_of_the_history_has_the_final_metrics(
    result: famr.Unlearned, without_three: famr.Splits
) -> None:
    scores, last = famr.evaluate(result, without_three, device="cpu").unlearned, result.history[-1]
    for name in ("retain_accuracy", "forget_accuracy", "forget_cross_entropy", "forget_entropy", "forget_kl"):
        assert getattr(last, name) == pytest.approx(getattr(scores, name), abs=1e-6), name


def process_settings() -> dict[str, object]:
    return {
        "environment": dict(os.environ),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "warn only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "flash attention": torch.backends.cuda.flash_sdp_enabled(),
        "memory-efficient attention": torch.backends.cuda.mem_efficient_sdp_enabled(),
        "math attention": torch.backends.cuda.math_sdp_enabled(),
        "cuDNN attention": torch.backends.cuda.cudnn_sdp_enabled(),
        "matrix products": torch.get_float32_matmul_precision(),
        "threads": torch.get_num_threads(),
        "gradients": torch.is_grad_enabled(),
        "state of torch's generators": [torch.get_rng_state().tolist(), torch.initial_seed()],
        "state of numpy's generator": repr(np.random.get_state()),
        "state of Python's generator": random.getstate(),
    }


def test_evaluation_leaves_no_process_wide_setting_changed(
    result: famr.Unlearned, original: famr.Classifier, without_three: famr.Splits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    before = process_settings()
    famr.evaluate(result, without_three, retrained=original, device="cpu")
    assert process_settings() == before


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


def test_with_a_forget_set_alone_the_other_metrics_are_not_available(original: famr.Classifier, digits: Data) -> None:
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


def test_stored_images_for_a_module_without_preprocessing_are_refused(without_three: famr.Splits) -> None:
    with pytest.raises(RequestError, match="preprocessing of this network"):
        famr.forget(nn.Sequential(nn.Flatten(), nn.Linear(768, 10)), without_three)
