"""The verdict of a report: what its audit says, and no more."""

from __future__ import annotations

from famr.audit.verdict import Verdict
from famr.metrics.tables import in_percent
from famr.report.records import RunRecords

WEAK = ", which alone is weak evidence"
OTHER_WEIGHTS = "Cannot tell: the audit in this folder is of other weights than the run's."
EARLIER_EDITION = (
    "Cannot tell: the audit in this folder is of the first edition, which did not check its reference models; "
    "make another one."
)


def report_verdict(records: RunRecords) -> tuple[Verdict, str]:
    """What follows from the audit of a run; without an audit, the verdict is "cannot tell".

    Args:
        records: The records of the run.

    Returns:
        The verdict, and the sentence that gives the reason.
    """
    if records.certificate is not None and records.certificate.get("kind") == "exact":
        return "pass", "Exact: the parts that were trained on the forget set were retrained without it."
    change, audit = _accuracy_change(records), records.audit
    if audit is None:
        return "cannot tell", f"Cannot tell: no audit was made{f'; accuracy {change}{WEAK}' if change else ''}."
    if not records.audit_matches_weights:
        return "cannot tell", OTHER_WEIGHTS
    verdict: Verdict = audit["verdicts"].get("unlearned", "cannot tell")
    if "sentence" not in audit and verdict != "fail":
        return "cannot tell", EARLIER_EDITION
    sentence = audit.get("sentence", "Failed: by an audit of the first edition.")
    return verdict, f"{sentence} Accuracy {change}." if change else sentence


def _accuracy_change(records: RunRecords) -> str:
    """How forget and retain accuracy changed; empty where they are not known."""
    metrics = records.metrics or {}
    parts: list[str] = []
    for name, images in (("forget_accuracy", "the forget set"), ("retain_accuracy", "held-out retained images")):
        values = [(metrics.get(model) or {}).get(name) for model in ("original", "unlearned")]
        if None not in values:
            before, after = (in_percent(name, value) for value in values)
            parts.append(f"on {images}{'' if parts else ' went'} from {before} to {after} %")
    return " and ".join(parts)
