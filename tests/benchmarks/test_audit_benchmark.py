"""The audit benchmark: its shadow models, its results when it is stopped or a cell fails, and its page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from benchmarks.audit_tables import audit_page, draw_audit
from benchmarks.cells import Results

import famr
from benchmarks import audit_cifar100 as benchmark
from conftest import small_vit
from famr.data import Data
from famr.errors import GateError

Calls = list[tuple[int, float]]
"""The seed, which is the shadow's number, and the budget of each call."""


@pytest.fixture
def shadows(digits: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> benchmark.ShadowModels:
    """Four shadow models, each an untrained network."""
    few = replace(digits, train=digits.train.take(torch.arange(60)))
    monkeypatch.setattr(
        benchmark, "trained_model", lambda _start, _images, _training, seed, _folder: small_vit(few, seed)
    )
    samples = torch.arange(0, 60, 5)
    start: Callable[[int], famr.Classifier] = lambda seed: small_vit(few, seed)  # noqa: E731
    return benchmark.ShadowModels(start, few, few.labels[3], samples, famr.Training(), 4, tmp_path / "models")


def unlearning(monkeypatch: pytest.MonkeyPatch, refuses: Callable[[int, float], bool]) -> Calls:
    """Replace `famr.forget` by one that does nothing, and refuses some calls; returns the list of its calls."""
    calls: Calls = []

    def forget(
        model: famr.Classifier, _splits: famr.Splits, method: famr.FAMR, *, seed: int, monitor: famr.Monitor
    ) -> Any:
        calls.append((seed, method.budget))
        if refuses(seed, method.budget):
            raise GateError(f"No strength forgets within the budget of {method.budget:g}.")
        return SimpleNamespace(model=model)

    monkeypatch.setattr(famr, "forget", forget)
    return calls


def test_every_image_is_in_half_of_the_shadows_and_logits_are_sorted_by_that(
    shadows: benchmark.ShadowModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlearning(monkeypatch, lambda _seed, _budget: False)
    assert (shadows.has_sample.sum(dim=0) == 2).all()
    found, wider = shadows.logits("samples", "default")
    assert wider == 0
    for image in range(len(shadows.samples)):
        saw = shadows.has_sample[:, image].tolist()
        logits_of_each = [
            shadows.logits_of(number, "samples", "default")["samples.trained"][image] for number in range(4)
        ]
        inside = [logits for logits, seen in zip(logits_of_each, saw, strict=True) if seen]
        assert found.trained is not None
        assert torch.equal(found.trained[:, image], torch.stack(inside))
        assert torch.equal(found.unlearned[:, image], torch.stack(inside))  # this method does nothing
        outside = [logits for logits, seen in zip(logits_of_each, saw, strict=True) if not seen]
        assert torch.equal(found.retrained[:, image], torch.stack(outside))


def test_a_shadow_that_is_refused_gets_the_wider_budget_and_is_counted(
    shadows: benchmark.ShadowModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = famr.FAMR().budget
    calls = unlearning(monkeypatch, lambda seed, budget: seed in (1, 2) and budget == own)
    assert shadows.logits("samples", "default")[1] == 2
    assert calls == [(0, own), (1, own), (1, benchmark.WIDER_BUDGET), (2, own), (2, benchmark.WIDER_BUDGET), (3, own)]
    assert shadows.logits("samples", "default")[1] == 2  # from the cached logits
    assert len(calls) == 6
    assert shadows.logits("class", "default")[1] == 1  # only shadows 0 and 2 saw the class
    assert [seed for seed, _ in calls[6:]] == [0, 2, 2]


def test_a_wider_budget_is_not_tried_for_a_method_of_fixed_strength(
    shadows: benchmark.ShadowModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = unlearning(monkeypatch, lambda _seed, _budget: True)
    with pytest.raises(GateError):
        shadows.logits("samples", "paper")
    assert len(calls) == 1


def test_a_run_that_is_stopped_loses_one_shadow_at_most(
    shadows: benchmark.ShadowModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(seed: int, _budget: float) -> bool:
        if seed == 2:
            raise KeyboardInterrupt
        return False

    unlearning(monkeypatch, stop)
    with pytest.raises(KeyboardInterrupt):
        shadows.logits("samples", "default")
    calls = unlearning(monkeypatch, lambda _seed, _budget: False)
    shadows.logits("samples", "default")
    assert [seed for seed, _ in calls] == [2, 3]
    shadows.logits("samples", "paper")  # another method starts anew, and keeps the first one's logits
    shadows.logits("samples", "default")
    assert [seed for seed, _ in calls] == [2, 3, 0, 1, 2, 3]


def test_each_shadow_is_trained_once_and_its_logits_serve_on_another_machine(
    shadows: benchmark.ShadowModels, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each is trained once for all that it has to unlearn; its logits alone are copied elsewhere."""
    trained: list[int] = []
    network = benchmark.trained_model

    def noted(start: Any, images: Any, training: Any, seed: int, folder: Path) -> famr.Classifier:
        trained.append(seed - 100)
        return network(start, images, training, seed, folder)

    monkeypatch.setattr(benchmark, "trained_model", noted)
    calls = unlearning(monkeypatch, lambda seed, _budget: seed == 1)  # every unlearning of this one fails
    unlearnings = [(kind, method) for kind in ("class", "samples") for method in ("default", "paper")]
    shadows.prepare(unlearnings, [2])
    assert trained == [2]
    shadows.prepare(unlearnings)
    assert sorted(trained) == [0, 1, 2, 3]
    trained.sort()
    own, wider = famr.FAMR().budget, benchmark.WIDER_BUDGET
    paper = famr.FAMR.paper().budget
    once = {number: [own, paper, own, paper] for number in (0, 2)}  # a class and samples, each in two ways
    assert [budget for seed, budget in calls if seed in once] == 2 * once[0]
    assert [budget for seed, budget in calls if seed == 1] == [own, wider, paper]  # it never saw the class
    unlearning(monkeypatch, lambda _seed, _budget: False)
    shadows.prepare(unlearnings)
    assert trained == [0, 1, 2, 3, 1]  # the one that had failed
    shadows.models.rename(tmp_path / "carried")
    monkeypatch.setattr(shadows, "models", tmp_path / "carried")
    for kind, method in unlearnings:
        shadows.logits(kind, method)
    assert trained == [0, 1, 2, 3, 1]


def test_a_cell_that_fails_is_recorded_and_shown_with_its_reason(
    shadows: benchmark.ShadowModels, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    unlearning(monkeypatch, lambda _seed, _budget: True)
    splits = famr.split(shadows.data, famr.Request(samples=shadows.samples.tolist()))
    model = small_vit(shadows.data)
    cell = benchmark.cell_or_error(model, [model], splits, shadows, "samples", "default")
    assert cell == {"error": "GateError: No strength forgets within the budget of 0.05."}
    facts = {"benchmark": "audit", "data": "digits", "model": "tiny", "training": {"epochs": 1, "batch_size": 2}}
    results = Results(tmp_path / "audit.json", {**facts, "references": 1, "shadows": 4, "shadow_epochs": 1})
    hostile = {"error": "ValueError: <b>\n| no"}
    for method, failed in (("default", cell), ("paper", hostile)):
        results.add({"kind": "samples", "request": "12 samples", "method": method, **failed})
    page = audit_page("audit", Results(tmp_path / "audit.json", {}).content)
    assert "Failed, so there are no figures: GateError: No strength forgets within the budget of 0.05." in page
    assert "ValueError: &lt;b&gt; | no" in page
    draw_audit(results.content, tmp_path / "audit.png")
    assert not (tmp_path / "audit.png").exists()  # there is nothing to draw


def test_the_page_says_how_many_shadows_had_a_wider_budget_and_the_figure_has_a_row_a_request(tmp_path: Path) -> None:
    figure = {"value": 0.25, "low": 0.2, "high": 0.3, "why_not": None}
    gate = {"name": "a_gate", "threshold": 0.1, "allowed": 0.1, "figures": {"unlearned": figure}}
    bars = benchmark.histogram(torch.rand(40))
    logits = torch.randn(4, 30, 5, generator=torch.Generator().manual_seed(0))
    roc = benchmark.roc_points(logits, logits.flip(0) + 1, torch.arange(30) % 5)
    cell = {
        "method": "default",
        "audit": {"verdicts": {"unlearned": "fail"}, "checks": [{**gate, "verdicts": {"unlearned": "fail"}}]},
        "seconds": {"forgetting": 1.0, "audit": 2.0, "gates": 1.5},
        "roc": {"unlearned": roc, "original": roc},
        "entropy": dict.fromkeys(("original", "retrained", "unlearned"), bars),
    }
    content: dict[str, Any] = {
        **{"benchmark": "audit", "data": "digits", "model": "tiny", "training": {"epochs": 1, "batch_size": 2}},
        **{"references": 1, "shadows": 16, "shadow_epochs": 4, "wider_budget": 0.05},
        "environment": {"hardware": "none", "torch": "2", "famr": "0"},
        "cells": [
            {"kind": "class", "request": "class $x", **cell},
            {"kind": "samples", "request": "5 samples", "shadows_with_wider_budget": 3, **cell},
        ],
    }
    first, second = audit_page("audit", content).split("## samples, default")
    assert "Of 16 shadows 3 forgot within a budget of 0.05 only." in second
    assert "budget" not in first
    assert "| a_gate | 0.1 | 0.100 | – | – | 0.250 [0.200, 0.300] fail |" in first
    draw_audit(content, tmp_path / "two.png")
    draw_audit({**content, "cells": content["cells"][:1]}, tmp_path / "one.png")
    heights = [int.from_bytes((tmp_path / name).read_bytes()[20:24], "big") for name in ("one.png", "two.png")]
    assert heights[1] == 2 * heights[0]
