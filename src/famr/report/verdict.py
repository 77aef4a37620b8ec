"""The verdict of a report: one sentence that claims no more than the audit does."""

from __future__ import annotations

from famr.audit.gates import gate_title
from famr.audit.verdict import Verdict
from famr.metrics.tables import in_percent
from famr.report.records import RunRecords

MAX_NAMED = 4
"""How many gates the sentence names."""
WEAK = ", which alone is weak evidence"


def report_verdict(records: RunRecords) -> tuple[Verdict, str]:
    """What follows from the audit of a run; without an audit, the verdict is "cannot tell".

    Args:
        records: The records of the run.

    Returns:
        The verdict, and one sentence that gives the reason.
    """
    if records.certificate is not None and records.certificate.get("kind") == "exact":
        return "pass", "Exact: the parts that were trained on the forget set were retrained without it."
    change = _accuracy_change(records)
    if records.audit is None:
        return "cannot tell", f"Cannot tell: no audit was made{change}{WEAK if change else ''}."
    if not records.audit_matches_weights:
        return "cannot tell", "Cannot tell: the audit in this folder is of other weights than the run's."
    gates: dict[str, list[str]] = {}
    for check in records.audit["checks"]:
        if "unlearned" in check["verdicts"]:
            gates.setdefault(check["verdicts"]["unlearned"], []).append(check["name"])
    count = sum(len(names) for names in gates.values())
    failed, undecided = gates.get("fail", []), gates.get("cannot tell", [])
    if failed:
        return "fail", f"Failed: {len(failed)} of {count} gates of the audit fail ({_titles(failed)}){change}."
    if undecided or not count:
        why = f"{len(undecided)} of {count} gates of the audit cannot tell ({_titles(undecided)})"
        return (
            "cannot tell",
            f"Cannot tell: no gate of the audit fails, but {why if count else 'no gate applies'}{change}.",
        )
    return "pass", (
        f"Passed: the unlearned model meets all {count} thresholds of the audit{change}; this is evidence, not proof."
    )


def _titles(names: list[str]) -> str:
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return "; ".join(gate_title(name) for name in names[:MAX_NAMED]) + more


def _accuracy_change(records: RunRecords) -> str:
    """How forget and retain accuracy changed, as a clause; empty where they are not known."""
    metrics = records.metrics or {}
    parts: list[str] = []
    for name, images in (("forget_accuracy", "the forget set"), ("retain_accuracy", "held-out retained images")):
        values = [(metrics.get(model) or {}).get(name) for model in ("original", "unlearned")]
        if None not in values:
            before, after = (in_percent(name, value) for value in values)
            parts.append(f"on {images}{'' if parts else ' went'} from {before} to {after} %")
    return f"; accuracy {' and '.join(parts)}" if parts else ""
