"""`build_report`: the sections of a report in their order, from a run's records and its measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from famr.report.certificate_and_audit import audit_section, certificate_section
from famr.report.content import Bullets, Report, Section, Table, Thumbnail
from famr.report.measure import Measurements
from famr.report.records import RunRecords
from famr.report.request_and_method import method_section, request_section
from famr.report.results import results_section
from famr.report.sign_off import sign_off_section
from famr.report.verdict import report_verdict

NOT_SHOWN = (
    "That nothing about the forget set can be learned from the weights: the metrics describe predictions on images.",
    "That the model equals one trained without the forget set; only retraining shows that.",
    "Anything about the data itself: sources, backups, caches and copies of the model were neither changed nor seen.",
    "Anything about models distilled from the original, its logs, or systems that still serve it.",
    "That the request was justified, or that it named everything that should be forgotten.",
)
NO_AUDIT = "Whether an attacker could tell: no audit was made."
NO_CERTIFICATE = "Any bound: no certificate was made."
NO_RETRAINED = "How close the result is to a retrained model: none was given."
RUN_NUMBERS = ("method", "seed", "epochs", "steps", "seconds", "drift", "drift_of_all_runs_at_most", "environment")


def build_report(
    records: RunRecords,
    measurements: Measurements | None,
    reason_missing: str | None = None,
    thumbnails: Sequence[Thumbnail] = (),
) -> Report:
    """Put a report together.

    Args:
        records: The records of the run.
        measurements: What was measured for the report; None where the run could not be opened again. Its metrics
            replace recorded ones only where it knows more: without a record, or with a retrained model.
        reason_missing: Why `measurements` is None.
        thumbnails: Forget images to show; empty unless the user asked for them.

    Raises:
        RequestError: Matplotlib, of the extra ``famr[report]``, is not installed.
    """
    if measurements is not None and (records.metrics is None or measurements.scores.retrained is not None):
        earlier = (records.metrics or {}).get("earlier", {})
        records = replace(records, metrics={**measurements.scores.to_json(), "earlier": earlier})
    outcome, sentence = report_verdict(records)
    return Report(
        f"Unlearning report: {records.request.describe()}",
        outcome,
        sentence,
        (
            request_section(records, thumbnails),
            method_section(records),
            results_section(records, measurements, reason_missing),
            certificate_section(records),
            audit_section(records),
            _details_section(records),
            _limits_section(records),
            sign_off_section(records),
        ),
        _numbers(records, measurements),
    )


def _details_section(records: RunRecords) -> Section:
    run = records.run
    parameters = tuple((name.replace("_", " "), _parameter(value)) for name, value in run["method"].items())
    versions = tuple((name, str(value)) for name, value in run["environment"].items())
    digests = (
        ("weights of the original", run["original"]["weights_sha256"]),
        ("weights of the unlearned model", run["unlearned"]["weights_sha256"]),
        *records.digests.items(),
    )
    return Section(
        "Parameters, versions, digests",
        (
            Table("Method and parameters", ("parameter", "value"), (*parameters, ("seed", str(run["seed"]))), words=2),
            Table("Hardware and versions", ("component", "version"), versions, words=2),
            Table("SHA-256 of the sources of this report", ("source", "digest"), digests, words=2),
        ),
    )


def _parameter(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _limits_section(records: RunRecords) -> Section:
    missing = [
        *([NO_AUDIT] if records.audit is None else []),
        *([NO_CERTIFICATE] if records.certificate is None else []),
        *([NO_RETRAINED] if not (records.metrics or {}).get("retrained") else []),
    ]
    return Section("What this report does not show", (Bullets((*NOT_SHOWN, *missing)),))


def _numbers(records: RunRecords, measurements: Measurements | None) -> dict[str, Any]:
    """The numbers behind the report for its JSON; no paths and no names of samples."""
    run = records.run
    return {
        "request_kind": records.request.kind,
        "forgotten_classes": list(run.get("classes", [])),
        "run": {name: run[name] for name in RUN_NUMBERS},
        "weights_sha256": {name: run[name]["weights_sha256"] for name in ("original", "unlearned")},
        "metrics": records.metrics,
        "history": list(records.history),
        "entropies": None if measurements is None else dict(measurements.entropies),
        "certificate": records.certificate
        and {name: records.certificate[name] for name in ("kind", "claims", "not_shown")},
        "audit": records.audit and {name: records.audit.get(name) for name in ("sentence", "verdicts", "checks")},
        "audits": [{"sha256": each.sha256, "verdict": each.verdict} for each in records.audits],
        "digests": dict(records.digests),
    }
