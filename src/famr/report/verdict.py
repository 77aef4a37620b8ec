"""The verdict of a report: one sentence that says no more than the audit does."""

from __future__ import annotations

from famr.metrics.tables import in_percent
from famr.report.content import Outcome
from famr.report.facts import Facts
from famr.report.gate_words import in_words

NAMED = 4
WEAK = ", which alone is weak evidence"


def verdict(facts: Facts) -> tuple[Outcome, str]:
    """What follows from the run's audit; without one nobody can tell."""
    if facts.certificate is not None and facts.certificate.get("kind") == "exact":
        return "pass", "Exact: the parts that had seen the data were trained again without it."
    if facts.audit is None:
        return "cannot tell", f"Cannot tell: no audit was made{_change(facts)}{WEAK if _change(facts) else ''}."
    if not facts.audit_is_of_this_model:
        return "cannot tell", "Cannot tell: the audit in this folder is of other weights than the run's."
    checks = [check for check in facts.audit["checks"] if "unlearned" in check["verdicts"]]
    by_verdict: dict[str, list[str]] = {}
    for check in checks:
        by_verdict.setdefault(check["verdicts"]["unlearned"], []).append(check["name"])
    count = len(checks)
    failed, unsure = by_verdict.get("fail", []), by_verdict.get("cannot tell", [])
    if failed:
        return "fail", f"Failed: {len(failed)} of {count} gates of the audit fail ({_names(failed)}){_change(facts)}."
    if unsure or not checks:
        why = (
            f"{len(unsure)} of {count} gates of the audit cannot tell ({_names(unsure)})"
            if checks
            else "no gate applies"
        )
        return "cannot tell", f"Cannot tell: no gate of the audit fails, but {why}{_change(facts)}."
    return "pass", (
        f"Passed: the unlearned model keeps all {count} thresholds of the audit{_change(facts)}; "
        "that is evidence, not proof."
    )


def _names(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return "; ".join(in_words(name) for name in names[:NAMED]) + more


def _change(facts: Facts) -> str:
    """What the answers did, in a clause."""
    metrics = facts.metrics or {}
    told: list[str] = []
    for name, words in (("forget_accuracy", "on the forget set"), ("retain_accuracy", "on what stays")):
        values = [(metrics.get(model) or {}).get(name) for model in ("original", "unlearned")]
        if None not in values:
            was, is_ = (in_percent(name, value) for value in values)
            told.append(f"{words}{'' if told else ' went'} from {was} to {is_} %")
    return f"; accuracy {' and '.join(told)}" if told else ""
