"""`build_report`: the sections of a report in their order, from a run's records and what was measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from famr.report.asked_and_done import asked, done
from famr.report.claims_and_gates import audit, certificate
from famr.report.content import Bullets, Report, Section, Table, Thumbnail
from famr.report.facts import Facts
from famr.report.left_to_people import left_to_people
from famr.report.measure import Measured
from famr.report.reached import reached
from famr.report.verdict import verdict

NOT_SHOWN = (
    "That nothing about the forgotten data can be learned from the weights: the figures describe answers on images.",
    "That the model is the one that training without the forget set would have given; only retraining shows that.",
    "Anything about the data itself: sources, backups, caches and copies of the model were neither touched nor seen.",
    "Anything about models distilled from the original, about its logs, or about who still serves it.",
    "That the request was justified, or that it named everything that should be forgotten.",
)
NO_AUDIT = "Whether an attacker could tell: no audit was made."
NO_CERTIFICATE = "Any bound: no certificate was made."
NO_RETRAINED = "How near the result is to a retrained model: none was given."


def build_report(
    facts: Facts, measured: Measured | None, why_not: str | None = None, pictures: tuple[Thumbnail, ...] = ()
) -> Report:
    """Put a report together. `why_not` says why nothing was measured, where that is so."""
    if measured is not None and (facts.metrics is None or measured.scores.retrained is not None):
        earlier = (facts.metrics or {}).get("earlier", {})
        facts = replace(facts, metrics={**measured.scores.to_json(), "earlier": earlier})
    outcome, sentence = verdict(facts)
    return Report(
        f"Unlearning report: {facts.request.describe()}",
        outcome,
        sentence,
        (
            asked(facts, pictures),
            done(facts),
            reached(facts, measured, why_not),
            certificate(facts),
            audit(facts),
            _details(facts),
            _not_shown(facts),
            left_to_people(facts),
        ),
        _records(facts, measured),
    )


def _details(facts: Facts) -> Section:
    run = facts.run
    method = tuple((name.replace("_", " "), _value(value)) for name, value in run["method"].items())
    versions = tuple((name, str(value)) for name, value in run["environment"].items())
    digests = (
        ("weights of the original", run["original"]["weights_sha256"]),
        ("weights of the unlearned model", run["unlearned"]["weights_sha256"]),
        *facts.digests.items(),
    )
    return Section(
        "Method, parameters, versions, digests",
        (
            Table("Method and parameters", ("setting", "value"), (*method, ("seed", str(run["seed"]))), words=2),
            Table("Hardware and versions", ("what", "version"), versions, words=2),
            Table("SHA-256 of what this report rests on", ("what", "digest"), digests, words=2),
        ),
    )


def _value(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _not_shown(facts: Facts) -> Section:
    missing = [
        *([NO_AUDIT] if facts.audit is None else []),
        *([NO_CERTIFICATE] if facts.certificate is None else []),
        *([NO_RETRAINED] if not (facts.metrics or {}).get("retrained") else []),
    ]
    return Section("What this report does not show", (Bullets((*NOT_SHOWN, *missing)),))


def _records(facts: Facts, measured: Measured | None) -> dict[str, Any]:
    """The figures as numbers; no paths and no names of samples."""
    run = facts.run
    names = ("method", "seed", "epochs", "steps", "seconds", "drift", "drift_of_all_runs_at_most", "environment")
    return {
        "request_kind": facts.request.kind,
        "forgotten_classes": list(run.get("classes", [])),
        "run": {name: run[name] for name in names},
        "weights_sha256": {name: run[name]["weights_sha256"] for name in ("original", "unlearned")},
        "metrics": facts.metrics,
        "history": list(facts.history),
        "entropies": None if measured is None else dict(measured.entropies),
        "certificate": facts.certificate
        and {name: facts.certificate[name] for name in ("kind", "claims", "not_shown")},
        "audit": facts.audit and {name: facts.audit[name] for name in ("verdicts", "checks")},
        "digests": dict(facts.digests),
    }
