"""The audit benchmark: its shadow models, what it keeps when it is stopped, its pages and figures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from benchmarks.audit_cifar100 import histogram, roc_points
from benchmarks.audit_page import audits_page, draw_audits
from benchmarks.audit_shadows import CLASS, SAMPLES, SHADOW_SEED, WIDER_BUDGET, ShadowModels, ShadowSetting
from benchmarks.audit_tables import audit_page, draw_audit

import famr
from conftest import small_vit
from famr.audit.lira import scaled_confidence
from famr.data import Data
from famr.data.splits import Splits
from famr.errors import GateError

METHODS = {"paper": famr.FAMR.paper(), "default": famr.FAMR()}
BOTH = [(kind, method) for kind in (CLASS, SAMPLES) for method in METHODS]


class Calls:
    """The trainings and the unlearnings that were asked for."""

    def __init__(self) -> None:
        self.trained: list[tuple[int, frozenset[str]]] = []
        self.unlearned: list[tuple[int, float, Splits]] = []


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Untrained networks in place of trained ones, and a method that does nothing."""
    calls = Calls()

    def fit(model: famr.Classifier, images: famr.Images, _training: famr.Training, *, seed: int) -> Any:
        calls.trained.append((seed - SHADOW_SEED, frozenset(images.ids)))
        return SimpleNamespace(model=model, seconds=0.0)

    monkeypatch.setattr(famr, "fit", fit)
    monkeypatch.setattr(famr, "forget", unlearning(calls, lambda _seed, _budget: False))
    return calls


def unlearning(calls: Calls, refuses: Callable[[int, float], bool]) -> Callable[..., Any]:
    def forget(
        model: Any, splits: Splits, method: famr.FAMR, *, recipe: famr.ProxyRecipe, seed: int, monitor: famr.Monitor
    ) -> Any:
        assert recipe.start is not None
        calls.unlearned.append((seed, method.budget, splits))
        if refuses(seed, method.budget):
            raise GateError(f"No strength forgets within the budget of {method.budget:g}.")
        return SimpleNamespace(model=model)

    return forget


@pytest.fixture
def setting(digits: Data) -> ShadowSetting:
    """Four shadow models of digits; twelve samples."""
    start: Callable[[int], famr.Classifier] = lambda seed: small_vit(digits, seed)  # noqa: E731
    samples = (digits.train.targets != 3).nonzero()[:60:5, 0]
    return ShadowSetting(start, digits, famr.Training(), digits.labels[3], samples, METHODS, 4)


def test_each_shadow_unlearns_as_many_samples_as_the_audited_model_and_saw_no_others_of_the_pool(
    setting: ShadowSetting, calls: Calls, tmp_path: Path
) -> None:
    ShadowModels(setting, tmp_path / "shadows.safetensors").prepare([(SAMPLES, "default")], [0, 1])
    pool = {setting.data.train.ids[index] for index in setting.pool.tolist()}
    asked = set(setting.forget_set(SAMPLES).ids)
    assert len(pool) == 2 * len(asked)
    assert asked < pool
    forgotten = [set(splits.forget.ids) for _, _, splits in calls.unlearned]
    for (_, seen), forget in zip(calls.trained, forgotten, strict=True):
        assert forget == seen & pool
    assert [len(each) for each in forgotten] == [len(asked), len(asked)]
    assert forgotten[0] | forgotten[1] == pool


def test_every_image_is_in_half_of_the_shadows_and_confidences_are_sorted_by_that(
    setting: ShadowSetting, calls: Calls, tmp_path: Path
) -> None:
    shadows = ShadowModels(setting, tmp_path / "shadows.safetensors")
    shadows.prepare(BOTH, range(4))
    found = shadows.logits(SAMPLES, "default")
    assert found is not None
    assert found.trained is not None
    seen = [ids for _, ids in sorted(calls.trained, key=lambda call: call[0])]
    own = [shadows._confidence(setting.start(SHADOW_SEED + number), SAMPLES) for number in range(4)]
    for index, id_ in enumerate(setting.forget_set(SAMPLES).ids):
        inside = [float(own[number][index]) for number in range(4) if id_ in seen[number]]
        outside = [float(own[number][index]) for number in range(4) if id_ not in seen[number]]
        assert found.trained[:, index, 0].tolist() == pytest.approx(inside)
        assert found.retrained[:, index, 0].tolist() == pytest.approx(outside)
    of_class = shadows.logits(CLASS, "paper")
    assert of_class is not None
    assert scaled_confidence(of_class.unlearned, of_class.targets)[0].tolist() == pytest.approx(
        shadows._confidence(setting.start(SHADOW_SEED), CLASS).float().tolist()
    )


def test_a_run_that_is_stopped_loses_one_shadow_at_most_and_another_machine_goes_on(
    setting: ShadowSetting, calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "shadows.safetensors"

    def stop(seed: int, _budget: float) -> bool:
        if seed == 2:
            raise KeyboardInterrupt
        return False

    monkeypatch.setattr(famr, "forget", unlearning(calls, stop))
    with pytest.raises(KeyboardInterrupt):
        ShadowModels(setting, file).prepare(BOTH, range(4))
    monkeypatch.setattr(famr, "forget", unlearning(calls, lambda _seed, _budget: False))
    file.rename(tmp_path / "copied.safetensors")
    resumed = ShadowModels(setting, tmp_path / "copied.safetensors")
    assert resumed.done(BOTH) == [0, 1]
    assert resumed.logits(CLASS, "default") is not None  # of the first pair
    resumed.prepare(BOTH, range(4))
    assert [number for number, _ in calls.trained] == [0, 1, 2, 2, 3]
    assert resumed.done(BOTH) == [0, 1, 2, 3]


def test_a_shadow_that_is_refused_gets_a_wider_budget_once_and_else_stays_missing(
    setting: ShadowSetting, calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = METHODS["default"].budget
    monkeypatch.setattr(famr, "forget", unlearning(calls, lambda _seed, budget: budget == own))
    shadows = ShadowModels(setting, tmp_path / "shadows.safetensors")
    shadows.prepare([(SAMPLES, "default")], [0])
    assert [budget for _, budget, _ in calls.unlearned] == [own, WIDER_BUDGET]
    assert shadows.done([(SAMPLES, "default")]) == [0]
    monkeypatch.setattr(famr, "forget", unlearning(calls, lambda _seed, _budget: True))
    shadows.prepare([(SAMPLES, "paper")], [0])  # of fixed strength: no budget helps
    assert len(calls.unlearned) == 3
    assert shadows.done([(SAMPLES, "paper")]) == []
    assert shadows.logits(SAMPLES, "paper") is None


def gate(verdict: str, *, counts: bool = True) -> dict[str, Any]:
    figure = {"value": 0.25, "low": 0.2, "high": 0.3, "why_not": None}
    missing = {"value": None, "low": None, "high": None, "why_not": "no images"}
    return {
        **{"name": "js_excess", "kind": "likeness", "threshold": 0.02, "allowed": 0.02, "counts": counts},
        "not_counted": None if counts else "the original does not fail it here",
        "figures": {"unlearned": figure, "original": figure, "retrained": missing},
        "verdicts": {"unlearned": verdict, "original": "fail", "retrained": "cannot tell"},
    }


def test_the_page_has_every_model_beside_the_gates_and_says_which_do_not_count(tmp_path: Path) -> None:
    verdicts = {"unlearned": "fail", "original": "fail"}
    cell = {
        "request": "class $x",
        "forget_images": 500,
        "audits": {
            "paper": {"sentence": "Failed: 0 of 1.", "verdicts": verdicts, "checks": [gate("fail")]},
            "default": {"sentence": "Cannot tell.", "verdicts": verdicts, "checks": [gate("pass", counts=False)]},
        },
        "seconds": {"retraining": 18.2, "audits": 31.0, "by_part": {"gates": 1.5}},
    }
    content: dict[str, Any] = {
        **{"benchmark": "audits", "data": "digits", "model": "tiny", "training": {"epochs": 1, "batch_size": 2}},
        **{"references": 5, "shadows": 0, "environment": {"hardware": "none", "torch": "2", "famr": "0"}},
        "cells": [cell],
    }
    page = audits_page("audits", content)
    value = "0.250 [0.200, 0.300]"
    assert (
        f"| js_excess | likeness | 0.020 | {value} **fail** | not available | – | – | – | {value} **fail** | "
        f"{value} pass | yes | no: the original does not fail it here |"
    ) in page
    assert "- **paper**: Failed: 0 of 1." in page
    assert "retraining 18.2; the audits of all methods together 31 (gates 1.5)" in page
    draw_audits(content, tmp_path / "one.png")
    draw_audits({**content, "cells": [cell, cell]}, tmp_path / "two.png")
    widths = [int.from_bytes((tmp_path / name).read_bytes()[16:20], "big") for name in ("one.png", "two.png")]
    assert widths[1] > widths[0]
    draw_audits({**content, "cells": []}, tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()  # there is nothing to draw


def test_the_page_of_the_first_edition_s_audits_is_made_from_its_file(tmp_path: Path) -> None:
    figure = {"value": 0.25, "low": 0.2, "high": 0.3, "why_not": None}
    check = {"name": "a_gate", "threshold": 0.1, "allowed": 0.1, "figures": {"unlearned": figure}}
    bars = histogram(torch.rand(40))
    logits = torch.randn(4, 30, 5, generator=torch.Generator().manual_seed(0))
    roc = roc_points(logits, logits.flip(0) + 1, torch.arange(30) % 5)
    cell = {
        **{"kind": "class", "request": "class $x", "method": "default"},
        "audit": {"verdicts": {"unlearned": "fail"}, "checks": [{**check, "verdicts": {"unlearned": "fail"}}]},
        "seconds": {"forgetting": 1.0, "audit": 2.0, "gates": 1.5},
        "roc": {"unlearned": roc, "original": roc},
        "entropy": dict.fromkeys(("original", "retrained", "unlearned"), bars),
    }
    content: dict[str, Any] = {
        **{"benchmark": "audit", "data": "digits", "model": "tiny", "training": {"epochs": 1, "batch_size": 2}},
        **{"references": 1, "shadows": 16, "shadow_epochs": 4, "wider_budget": 0.05, "cells": [cell]},
        "environment": {"hardware": "none", "torch": "2", "famr": "0"},
    }
    assert "| a_gate | 0.1 | 0.100 | – | – | 0.250 [0.200, 0.300] fail |" in audit_page("audit", content)
    draw_audit(content, tmp_path / "one.png")
    assert (tmp_path / "one.png").is_file()
