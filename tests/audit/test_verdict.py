"""Verdicts: intervals decide, thresholds are fixed in a file, retrained models set what can be asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from famr.audit.verdict import Audit, Figure, check, overall, read_thresholds, verdict_of
from famr.errors import RequestError


@pytest.mark.parametrize(
    ("figure", "expected"),
    [
        (Figure(0.05), "pass"),
        (Figure(0.050001), "fail"),
        (Figure(0.02, 0.01, 0.05), "pass"),
        (Figure(0.02, 0.0, 0.06), "cannot tell"),
        (Figure(0.2, 0.05, 0.3), "cannot tell"),
        (Figure(0.2, 0.06, 0.3), "fail"),
        (Figure.not_available("too few images"), "cannot tell"),
    ],
)
def test_a_verdict_needs_the_whole_interval(figure: Figure, expected: str) -> None:
    assert verdict_of(figure, 0.05) == expected


def test_nobody_is_asked_to_be_nearer_than_retrained_models_are_to_each_other() -> None:
    figures = {"unlearned": Figure(0.28)}
    assert check("js", "…", 0.25, figures).verdicts["unlearned"] == "fail"
    wide = check("js", "…", 0.25, figures, among_retrained=[Figure(0.2), Figure(0.27, 0.24, 0.3)])
    assert (wide.allowed, wide.threshold, wide.verdicts["unlearned"]) == (0.3, 0.25, "pass")


def test_what_retrained_models_lack_says_nothing_about_their_spread() -> None:
    near = Figure(0.2, 0.1, 0.3)
    together = check("gap", "…", 0.05, {"retrained": near}, among_retrained=[near, Figure(0.1, 0.0, 0.2)])
    assert (together.allowed, together.verdicts["retrained"]) == (0.3, "pass")
    missing = check("gap", "…", 0.05, {"unlearned": near}, among_retrained=[Figure.not_available("none")] * 2)
    assert (missing.allowed, missing.verdicts["unlearned"]) == (0.05, "fail")


def test_what_an_audit_cost_is_told_and_not_compared() -> None:
    first, second = (Audit((), {"seed": 0}, costs={"answers": seconds}) for seconds in (1.0, 2.0))
    assert first == second
    assert first.to_json()["costs"] == {"answers": 1.0}


def test_an_audit_fails_with_its_first_gate_and_passes_with_its_last() -> None:
    one = check("a", "…", 0.1, {"unlearned": Figure(0.0), "original": Figure(0.9), "retrained": Figure(0.0)})
    two = check("b", "…", 0.1, {"unlearned": Figure(0.0, 0.0, 0.5), "original": Figure(0.9), "retrained": Figure(0.05)})
    audit = Audit((one, two), {})
    assert audit.verdicts == {"unlearned": "cannot tell", "original": "fail", "retrained": "pass"}
    assert json.loads(json.dumps(audit.to_json()))["checks"][1]["figures"]["unlearned"]["high"] == 0.5
    assert overall(["pass"]) == "pass"


def test_thresholds_come_from_a_file_that_was_there_before(tmp_path: Path) -> None:
    own = read_thresholds()
    assert own["tell_tale_auc"] == 0.65
    file = tmp_path / "mine.json"
    file.write_text('{"tell_tale_auc": 0.6}', encoding="utf-8")
    assert read_thresholds(file) == {"tell_tale_auc": 0.6}
    file.write_text('["no"]', encoding="utf-8")
    with pytest.raises(RequestError, match="cannot be read"):
        read_thresholds(file)
