"""The page of published settings: a pair of numbers for each baseline, or "not found"."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks.published_settings import NOT_FOUND, PUBLISHED, compared, differences, published_method, published_page

from famr.baselines import BASELINES, SSD
from famr.data.augmentation import Augmentation


def cell(**changes: Any) -> dict[str, Any]:
    return {
        "task": "class rocket",
        "numbers": {"steps": {"epochs": 5}},
        "seconds": 1.5,
        "retraining": {"seconds": 20.0},
        "original": {"retain_accuracy": 0.62, "forget_accuracy": 0.99},
        "retrained": {"retain_accuracy": 0.60, "forget_accuracy": 0.0},
        "unlearned": {"retain_accuracy": 0.55, "forget_accuracy": 0.04},
        **changes,
    }


def test_every_baseline_has_a_setting_and_a_figure_has_a_source() -> None:
    assert set(PUBLISHED) == set(BASELINES) - {"famr"}
    for published in PUBLISHED.values():
        known = (published.test, published.forget, published.reference_test)
        assert (published.source == NOT_FOUND) == all(value is None for value in known)
        assert published.why


def test_methods_run_with_their_authors_numbers_and_the_training_augmentation() -> None:
    augmentation = Augmentation(smallest_area=0.8, mirror=True)
    for name, baseline in BASELINES.items():
        if name in PUBLISHED:
            method: Any = published_method(name, augmentation)
            assert method == SSD() or not hasattr(method, "steps") or method.steps.augmentation == augmentation
            assert type(method) is baseline


def test_each_side_is_compared_with_its_own_reference() -> None:
    shrink = differences(compared("boundary-shrink", cell()))
    assert shrink == pytest.approx({"published": 68.87 - 76.28, "ours": -5.0, "difference": 7.41 - 5.0})
    scrub = differences(compared("scrub", cell()))
    assert (scrub["published"], scrub["ours"]) == pytest.approx((-0.1, -7.0))  # against the original
    assert differences(compared("bad-teacher", cell()))["difference"] is None


def test_the_page_shows_what_was_found_what_was_not_and_what_failed() -> None:
    rows = [compared("delete", cell()), compared("sisa", cell()), compared("retrain", cell())]
    rows.append(compared("salun", {"error": {"what": "The loss is not finite."}}))
    content = {
        "data": "CIFAR-100",
        "model": "timm:resnet18",
        "training": {"epochs": 12, "batch_size": 512, "learning_rate": 3e-3},
        "seed": 0,
        "environment": {"hardware": "a GPU", "torch": "2", "timm": "1", "famr": "0"},
        "cells": rows,
    }
    page = published_page("published-cifar100-resnet18", content)
    assert "| DELETE | 88.73 / 2.43 | POUR" in page
    assert "| 55.0 / 4.0 | retrained | -6.0 | -5.0 | +1.0 |" in page
    assert "| SISA | not found | not found | 55.0 / 4.0 | retrained | – | -5.0 | – |" in page
    assert "failed: The loss is not finite." in page
    assert "| 60.0 / 0.0 | retrained | +0.0 | +0.0 | +0.0 |" in page
