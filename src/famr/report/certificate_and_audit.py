"""The sections of the certificate and of the audit: every claim and every gate, with what each rests on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from famr.audit.gates import gate_title
from famr.audit.sentence import first_questions
from famr.certificates.page import format_number
from famr.report.content import Block, Bullets, Section, Table, Text
from famr.report.records import RunRecords
from famr.runs.audits import describe_audits

MAX_STATED = 40
"""How many figures without a threshold are shown."""


def certificate_section(records: RunRecords) -> Section:
    """Each claim with its bound and its assumptions, failing ones included.

    Args:
        records: The records of the run.
    """
    certificate = records.certificate
    if certificate is None:
        return Section("Certificate", (Text("Not available: none was made. `famr certify` makes one."),))
    rows = tuple(
        (
            _words(claim["name"]),
            claim["source"],
            "not available" if claim.get("not_available") else format_number(claim.get("value")),
            format_number(claim.get("bound")),
            _holds(claim),
        )
        for claim in certificate["claims"]
    )
    return Section(
        "Certificate",
        (
            Text(f"Kind: {certificate['kind']}, that is: {certificate['means']}."),
            Table("Claims", ("claim", "source", "value", "bound", "holds"), rows, words=2),
            Bullets(tuple(_explanation(claim) for claim in certificate["claims"])),
            Text("The certificate does not show:"),
            Bullets(tuple(certificate["not_shown"])),
        ),
    )


def _holds(claim: Mapping[str, Any]) -> str:
    if claim.get("holds") is None:
        return "–"
    if not claim["holds"]:
        return "no"
    failing = any(assumption["status"] == "fails" for assumption in claim.get("assumptions", ()))
    return "measured, not proved" if failing else "yes"


def _explanation(claim: Mapping[str, Any]) -> str:
    parts = [f"{_words(claim['name'])}: {claim['says']}"]
    if claim.get("not_available"):
        parts.append(f"Not available: {claim['not_available']}.")
    assumptions = claim.get("assumptions", ())
    parts += [f"Assumption, {assumption['status']}: {assumption['says']}" for assumption in assumptions]
    return " ".join(parts)


def audit_section(records: RunRecords) -> Section:
    """The verdict in a sentence; against what, on which images, with what power; then each gate with its figures.

    Args:
        records: The records of the run.
    """
    audit = records.audit
    if audit is None:
        return Section("Audit", (Text("Not available: none was made. `famr audit` makes one."),))
    blocks: list[Block] = []
    if not records.audit_matches_weights:
        blocks.append(Text("This audit is of other weights than the run's."))
    if sentence := audit.get("sentence"):
        blocks.append(Text(sentence))
    made = describe_audits([each.verdict for each in records.audits])
    blocks.append(Bullets((*first_questions(audit), f"Audits of this run, with their verdicts: {made}.")))
    if models := _models(audit.get("subject", {})):
        blocks.append(models)
    blocks += [
        _gates(audit),
        Text(
            "A gate passes if the whole 95 % interval is within what is allowed, fails if the value is beyond it and "
            "the whole interval beyond the threshold, and otherwise the audit cannot tell. The thresholds were fixed "
            "before the audit and are part of its record."
        ),
        Bullets(tuple(f"{gate_title(check['name'])} ({check['name']}): {check['says']}" for check in audit["checks"])),
    ]
    reasons = [
        result["why_not"] for check in audit["checks"] for result in check["figures"].values() if result.get("why_not")
    ]
    if notes := [*dict.fromkeys(reasons), *audit.get("notes", ())]:
        blocks += [Text("Notes, and reasons for figures that are not available:"), Bullets(tuple(notes))]
    return Section("Audit", (*blocks, *_stated(audit.get("stated", {}))))


def _models(subject: Mapping[str, Any]) -> Table | None:
    """Digests of the models, and what shows that the references never saw the forget set; None where not recorded."""
    if "references" not in subject:
        return None
    rows = [
        (name, subject[f"{name}_sha256"], "–", "–", "–")
        for name in ("unlearned", "original")
        if subject.get(f"{name}_sha256")
    ]
    controls = subject.get("controls", {})
    trained = [(f"retrained {index}", each) for index, each in enumerate(subject["references"])]
    trained += [(name, each) for name, each in controls.items() if "unseen_accuracy" in each]
    rows += [
        (
            name,
            each["sha256"],
            "; ".join(each["not_shown"]) or "yes, by its training record",
            format_number(each["forget_accuracy"]),
            format_number(each["unseen_accuracy"]),
        )
        for name, each in trained
    ]
    heads = ("model", "SHA-256 of the weights", "never saw the forget set", "accuracy on it", "on unseen images")
    return Table("Models of the audit; accuracies from 0 to 1", heads, tuple(rows), words=3)


def _gates(audit: Mapping[str, Any]) -> Table:
    models = tuple(audit["verdicts"])
    rows = [
        (
            gate_title(check["name"]),
            format_number(check.get("allowed", check.get("threshold"))),
            *(f"{_interval(check['figures'].get(name))} {check['verdicts'].get(name, '')}".strip() for name in models),
            "yes" if check.get("counts", True) else "no",
        )
        for check in audit["checks"]
    ]
    rows.append(("verdict", "", *audit["verdicts"].values(), ""))
    caption = "Gates: figure [95 % interval] and verdict of each model; fractions from 0 to 1 unless stated below"
    return Table(caption, ("gate", "at most", *models, "counts"), tuple(rows))


def _interval(result: Mapping[str, Any] | None) -> str:
    if result is None or result.get("value") is None:
        return "–"
    if result.get("low") is None:
        return format_number(result["value"])
    return f"{result['value']:.3f} [{result['low']:.3f}, {result['high']:.3f}]"


def _stated(stated: Mapping[str, Any]) -> list[Block]:
    """What the audit measured without a threshold: numbers as a table, sentences as a list."""
    leaves = _leaves(stated)
    numbers = [(subject, part, format_number(value)) for subject, part, value in leaves if not isinstance(value, str)]
    sentences = [
        f"{subject}: {value}" if part == "says" else f"{subject}, {part}: {value}"
        for subject, part, value in leaves
        if isinstance(value, str)
    ]
    blocks: list[Block] = []
    if numbers:
        more = f" ({len(numbers) - MAX_STATED} more in unlearning/audit.json)" if len(numbers) > MAX_STATED else ""
        caption = f"Measured without a threshold; fractions unless stated below{more}"
        blocks.append(Table(caption, ("subject", "part", "value"), tuple(numbers[:MAX_STATED]), words=2))
    return [*blocks, Bullets(tuple(sentences))] if sentences else blocks


def _leaves(values: Mapping[str, Any], parent: str = "") -> list[tuple[str, str, str | float]]:
    """Every number and sentence of nested values as (subject, part, value); lists and counts stay in audit.json.

    >>> _leaves({"calibration": {"says": "ECE.", "ece": {"unlearned": 0.03}}})
    [('calibration', 'says', 'ECE.'), ('calibration', 'ece unlearned', 0.03)]
    """
    rows: list[tuple[str, str, str | float]] = []
    for name, value in values.items():
        path = f"{parent} {_words(name)}".strip()
        if isinstance(value, Mapping):
            rows += _leaves(value, path if parent else f"{path}:") if name != "counts" else []
        elif value is not None and not isinstance(value, list | bool):
            subject, _, part = path.partition(": ")
            rows.append((subject.removesuffix(":"), part, value))
    return rows


def _words(name: str) -> str:
    return name.replace("_", " ")
