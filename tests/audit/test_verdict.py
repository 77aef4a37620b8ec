"""Verdicts: intervals decide, thresholds are fixed beforehand, retrained models set what is allowed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from famr.audit.estimate import Estimate, Estimates
from famr.audit.gates import GATES, Gate
from famr.audit.verdict import Audit, GateResult, overall, read_thresholds, verdict_of
from famr.errors import RequestError


@pytest.mark.parametrize(
    ("estimate", "expected"),
    [
        (Estimate(0.05), "pass"),
        (Estimate(0.050001), "fail"),
        (Estimate(0.02, 0.01, 0.05), "pass"),
        (Estimate(0.02, 0.0, 0.06), "cannot tell"),
        (Estimate(0.2, 0.05, 0.3), "cannot tell"),
        (Estimate(0.2, 0.06, 0.3), "fail"),
        (Estimate.not_available("too few images"), "cannot tell"),
    ],
)
def test_a_verdict_needs_the_whole_interval(estimate: Estimate, expected: str) -> None:
    assert verdict_of(estimate, 0.05) == expected


def judged(threshold: float, by_model: dict[str, Estimate], among: Sequence[Estimate] = ()) -> GateResult:
    """The result of a gate with these estimates."""
    estimates = Estimates(by_model, among)
    gate = Gate("gap", "a gap", "A gap.", threshold, measure=lambda _models: estimates)
    return GateResult.of(gate, estimates, threshold)


def test_no_model_has_to_be_nearer_than_retrained_models_are_to_each_other() -> None:
    estimates = {"unlearned": Estimate(0.28)}
    assert judged(0.25, estimates).verdicts["unlearned"] == "fail"
    wide = judged(0.25, estimates, [Estimate(0.2), Estimate(0.27, 0.24, 0.3)])
    assert (wide.allowed, wide.threshold, wide.verdicts["unlearned"]) == (0.3, 0.25, "pass")


def test_missing_estimates_of_retrained_models_leave_the_threshold_as_it_is() -> None:
    near = Estimate(0.2, 0.1, 0.3)
    together = judged(0.05, {"retrained": near}, [near, Estimate(0.1, 0.0, 0.2)])
    assert (together.allowed, together.verdicts["retrained"]) == (0.3, "pass")
    missing = judged(0.05, {"unlearned": near}, [Estimate.not_available("none")] * 2)
    assert (missing.allowed, missing.verdicts["unlearned"]) == (0.05, "fail")


def test_an_undecided_gate_has_no_estimates() -> None:
    result = judged(0.05, {"unlearned": Estimate(0.9), "original": Estimate(0.0)}, [Estimate(0.1)]).undecided("too few")
    assert result.allowed == 0.05
    assert set(result.verdicts.values()) == {"cannot tell"}
    assert {estimate.why_not for estimate in result.figures.values()} == {"too few"}


def test_the_costs_of_an_audit_are_recorded_and_not_compared() -> None:
    first, second = (Audit((), {"seed": 0}, costs={"answers": seconds}) for seconds in (1.0, 2.0))
    assert first == second
    assert first.to_json()["costs"] == {"answers": 1.0}


def test_an_audit_fails_where_one_gate_fails_and_passes_where_all_pass() -> None:
    one = judged(0.1, {"unlearned": Estimate(0.0), "original": Estimate(0.9), "retrained": Estimate(0.0)})
    two = judged(0.1, {"unlearned": Estimate(0.0, 0.0, 0.5), "original": Estimate(0.9), "retrained": Estimate(0.05)})
    audit = Audit((one, two), {})
    assert audit.verdicts == {"unlearned": "cannot tell", "original": "fail", "retrained": "pass"}
    assert json.loads(json.dumps(audit.to_json()))["checks"][1]["figures"]["unlearned"]["high"] == 0.5
    assert overall(["pass"]) == "pass"


def test_the_record_of_a_gate_has_the_fields_of_the_first_edition() -> None:
    record = judged(0.1, {"unlearned": Estimate(0.0, 0.0, 0.5)}).to_json()
    fields = ["name", "says", "threshold", "allowed", "needs_retrained", "figures", "verdicts"]
    assert list(record) == fields
    assert list(record["figures"]["unlearned"]) == ["value", "low", "high", "why_not"]
    first_edition = Path(__file__).parents[1] / "fixtures/first_edition/class/unlearning/audit.json"
    old = json.loads(first_edition.read_text(encoding="utf-8"))
    assert list(old["checks"][0]) == fields
    assert {check["name"] for check in old["checks"]} <= set(GATES)
    assert old["subject"]["thresholds"] == read_thresholds()


def test_every_gate_has_a_name_of_its_own_and_words_for_a_report() -> None:
    assert all(gate.name == name for name, gate in GATES.items())
    for words in ("title", "description"):
        assert len({getattr(gate, words) for gate in GATES.values()}) == len(GATES)
    assert all(gate.description.endswith(".") and not gate.title.endswith(".") for gate in GATES.values())


def test_thresholds_are_the_gates_own_or_those_of_a_file(tmp_path: Path) -> None:
    own = read_thresholds()
    assert own["tell_tale_auc"] == 0.65
    assert list(own) == list(GATES)
    file = tmp_path / "mine.json"
    file.write_text('{"tell_tale_auc": 0.6}', encoding="utf-8")
    assert read_thresholds(file) == {"tell_tale_auc": 0.6}
    file.write_text('["no"]', encoding="utf-8")
    with pytest.raises(RequestError, match="cannot be read"):
        read_thresholds(file)
