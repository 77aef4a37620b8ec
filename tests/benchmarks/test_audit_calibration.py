"""The calibration of the audit: who is audited against whom, what is counted, and its page."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from benchmarks.audit_calibration import (
    METHODS,
    ORIGINAL_SEED,
    SETS,
    TRAINING,
    Calibration,
    as_references,
    clopper_pearson,
    gate_rates,
    reference_sets,
    summarised,
)
from benchmarks.calibration_page import TITLES, calibration_page
from benchmarks.cells import small_vit
from scipy import stats

import famr
from famr.audit.conversions import ConversionHits
from famr.audit.measurements import TRAINED_REFERENCES
from famr.audit.perturbed import PerturbedHits
from made_up import measured, right_for

RETRAINED = [f"retrained {seed}" for seed in range(54, 84)]


def row(audited: str, verdict: str, number: int = 0, **gates: list[str]) -> dict[str, Any]:
    of_gates = {"gates": ["a_gap"], "counted": [], "fail": [], "cannot tell": [], **gates}
    return {"audited": audited, "references": 5, "set": number, "verdict": verdict, "obstacles": 0, **of_gates}


ROWS = [
    row("retrained 54", "pass", counted=["a_gap"]),
    row("retrained 54", "fail", 1, counted=["a_gap"], fail=["a_gap"]),
    row("retrained 55", "fail", counted=["a_gap"], fail=["a_gap"]),
    row("retrained 56", "cannot tell"),
    row("original 0", "fail", counted=["a_gap"], fail=["a_gap"]),
]


def test_a_model_is_audited_against_disjoint_sets_of_others() -> None:
    for count, sets in SETS.items():
        for audited in (RETRAINED[3], "original 0"):
            drawn = reference_sets(RETRAINED, audited, count)
            names = [name for references in drawn for name in references]
            assert [len(references) for references in drawn] == [count] * sets
            assert len(set(names)) == len(names)
            assert set(names) <= set(RETRAINED) - {audited}
    assert reference_sets(RETRAINED[:5], RETRAINED[0], 5) == []


def test_references_are_measured_as_in_an_audit() -> None:
    """Attacks that train on the first five, conversions but ONNX on the first."""
    hits = torch.ones(20)
    converted = ConversionHits(hits, {"int8": hits, "onnx": hits}, {})
    base = measured(right_for(0.5, torch.arange(20) % 5), right_for(0.5, torch.arange(20) % 5))
    full = replace(base, conversions=converted, perturbed=PerturbedHits({"noise": hits}))
    found = as_references([full] * 8)
    assert [each.perturbed is not None for each in found] == [True] * TRAINED_REFERENCES + [False] * 3
    assert [each.conversions is not None for each in found] == [True] + [False] * 7
    assert found[0].conversions is not None
    assert list(found[0].conversions.converted) == ["int8"]


def test_methods_are_named_by_where_their_target_comes_from_and_the_thorough_one_knows_the_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without an effort the default would depend on what is known of the training: `auto`."""
    assert [f"unlearned {name}" in TITLES for name in METHODS] == [True] * 3
    assert {name: method.effort for name, method in METHODS.items()} == {
        **{"paper": "quick", "quick": "quick", "thorough": "thorough"}
    }
    given = {}

    def forget(model: famr.Classifier, *_: Any, **arguments: Any) -> SimpleNamespace:
        given.update(arguments)
        return SimpleNamespace(model=model)

    monkeypatch.setattr(famr, "forget", forget)
    data = famr.open_data("digits")
    calibration = Calibration(data, TRAINING, 4, True, None)
    original = calibration._models["original 2"] = small_vit(data.labels)(0)
    assert calibration.model("unlearned thorough 2") is original
    assert given["recipe"].training == TRAINING
    assert given["recipe"].start.digest() == small_vit(data.labels)(ORIGINAL_SEED + 2).digest()


def test_a_model_counts_by_its_first_audit_and_any_audit_is_stated_beside_it() -> None:
    found = summarised(ROWS)["retrained"]
    assert {each: found[each] for each in ("audits", "pass", "fail", "cannot tell", "models")} == {
        **{"audits": 4, "pass": 1, "fail": 2, "cannot tell": 1, "models": 3}
    }
    assert (found["models failed in the first audit"], found["models failed in any audit"]) == (1, 2)
    assert found["interval"] == clopper_pearson(1, 3)


@pytest.mark.parametrize(("count", "total"), [(0, 24), (1, 24), (24, 24)])
def test_the_interval_of_a_share_is_the_exact_one(count: int, total: int) -> None:
    """Ends are the shares at which so many, or so few, still have a probability of 2.5 %."""
    low, high = clopper_pearson(count, total)
    if count > 0:
        assert stats.binom.sf(count - 1, total, low) == pytest.approx(0.025)
    if count < total:
        assert stats.binom.cdf(count, total, high) == pytest.approx(0.025)


def test_the_page_has_verdicts_gates_and_cost() -> None:
    content = {
        "benchmark": "audit_calibration-digits",
        **{"command": "python -m benchmarks.audit_calibration", "commit": "abc", "data": "digits", "model": "tiny"},
        "training": {"epochs": 1, "batch_size": 2},
        "seeds": {"retrained": [54, 83], "originals": [1000, 1003], "never saw": [2000, 2000]},
        "environment": {"hardware": "none", "threads": 1, "torch": "2", "timm": "1", "famr": "0"},
        "seconds": {"retraining": 5.0, "audit": {"in all": 40.0, "relearning": 30.0, "shadow attacks": 0.0}},
        "summary": {"5": summarised(ROWS)},
        "gates": {"5": gate_rates(ROWS)},
        "audits": ROWS,
    }
    page = calibration_page("audit_calibration-digits", content)
    assert "| truly retrained | 5 | 4 | 1 | 1 | 2 | 50.0 | 3 | 1 | 0.8 to 90.6 | 2 |" in page
    assert "| a_gap | 75 | 50 | 100 |" in page
    assert "| gate | 5 references |\n|---|---|\n| a_gap | 2 (2) |" in page
    assert "(seeds 54 to 83)" in page
    assert "Seeds 0 to 53 are left out" in page
    assert "took 40.0 s, 8.0 times as long (relearning 30.0)" in page
