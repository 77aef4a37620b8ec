"""The sections for the certificate and the audit: whatever they contain, with what each rests on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from famr.certificates.page import figure
from famr.report.content import Block, Bullets, Section, Table, Text
from famr.report.facts import Facts
from famr.report.gate_words import in_words

MOST_STATED = 40


def certificate(facts: Facts) -> Section:
    """Each claim with its bound, and the assumptions under it, failing ones included."""
    found = facts.certificate
    if found is None:
        return Section("Certificate", (Text("Not available: none was made. `famr certify` makes one."),))
    rows = tuple(
        (
            _words(claim["name"]),
            claim["source"],
            "not available" if claim.get("not_available") else figure(claim.get("value")),
            figure(claim.get("bound")),
            _holds(claim),
        )
        for claim in found["claims"]
    )
    blocks: list[Block] = [
        Text(f"Kind: {found['kind']}, that is: {found['means']}."),
        Table("Claims", ("claim", "source", "value", "bound", "holds"), rows, words=2),
        Bullets(tuple(_explained(claim) for claim in found["claims"])),
        Text("The certificate does not show:"),
        Bullets(tuple(found["not_shown"])),
    ]
    return Section("Certificate", tuple(blocks))


def _holds(claim: Mapping[str, Any]) -> str:
    if claim.get("holds") is None:
        return "–"
    failing = any(assumption["status"] == "fails" for assumption in claim.get("assumptions", ()))
    if claim["holds"]:
        return "measured, not proved" if failing else "yes"
    return "no"


def _explained(claim: Mapping[str, Any]) -> str:
    parts = [f"{_words(claim['name'])}: {claim['says']}"]
    if claim.get("not_available"):
        parts.append(f"Not available: {claim['not_available']}.")
    parts += [f"Assumption, {each['status']}: {each['says']}" for each in claim.get("assumptions", ())]
    return " ".join(parts)


def audit(facts: Facts) -> Section:
    """Each gate: the threshold, the figures with their intervals, the verdicts."""
    found = facts.audit
    if found is None:
        return Section("Audit", (Text("Not available: none was made. `famr audit` makes one."),))
    models = list(found["verdicts"])
    rows = []
    for check in found["checks"]:
        cells = [
            f"{_interval(check['figures'].get(model))} {check['verdicts'].get(model, '')}".strip() for model in models
        ]
        rows.append((in_words(check["name"]), figure(check.get("allowed", check.get("threshold"))), *cells))
    rows.append(("all gates", "", *found["verdicts"].values()))
    reasons = [
        each["why_not"] for check in found["checks"] for each in check["figures"].values() if each.get("why_not")
    ]
    of_whom = [] if facts.audit_is_of_this_model else [Text("This audit is of other weights than those of the run.")]
    blocks: list[Block] = [
        *of_whom,
        Text(
            "A gate passes where the whole 95 % interval keeps the threshold and fails where the whole interval breaks "
            "it; else the audit cannot tell. The thresholds stand in the audit's record."
        ),
        Table(
            "Gates: figure [95 % interval] and verdict of each model; shares from 0 to 1 unless said below",
            ("gate", "at most", *models),
            tuple(rows),
        ),
        Bullets(tuple(f"{in_words(check['name'])} ({check['name']}): {check['says']}" for check in found["checks"])),
    ]
    if lines := [*dict.fromkeys(reasons), *found.get("notes", ())]:
        blocks += [Text("Stated and not judged, or not available:"), Bullets(tuple(lines))]
    return Section("Audit", (*blocks, *_stated(found.get("stated", {}))))


def _stated(found: Mapping[str, Any]) -> list[Block]:
    """What was measured and not judged: sentences as a list, figures as a table."""
    leaves = _leaves(found)
    words = [
        f"{what}: {value}" if of == "says" else f"{what}, {of}: {value}"
        for what, of, value in leaves
        if isinstance(value, str)
    ]
    figures = [(what, of, figure(value)) for what, of, value in leaves if not isinstance(value, str)]
    more = f" ({len(figures) - MOST_STATED} more in unlearning/audit.json)" if len(figures) > MOST_STATED else ""
    blocks: list[Block] = []
    if figures:
        rows = tuple(figures[:MOST_STATED])
        blocks.append(
            Table(f"Measured and not judged, as shares unless said below{more}", ("what", "of", "value"), rows, words=2)
        )
    return [*blocks, Bullets(tuple(words))] if words else blocks


def _leaves(found: Mapping[str, Any], above: str = "") -> list[tuple[str, str, str | float]]:
    """Every figure and word of nested values, by where it stands; lists and counts are left to the audit's own file.

    >>> _leaves({"calibration": {"says": "ECE.", "ece": {"unlearned": 0.03}}})
    [('calibration', 'says', 'ECE.'), ('calibration', 'ece unlearned', 0.03)]
    """
    rows: list[tuple[str, str, str | float]] = []
    for name, value in found.items():
        path = f"{above} {_words(name)}".strip()
        if isinstance(value, Mapping):
            rows += _leaves(value, f"{path}:" if not above else path) if name != "counts" else []
        elif value is not None and not isinstance(value, list | bool):
            what, _, of = path.partition(": ")
            rows.append((what.removesuffix(":"), of, value))
    return rows


def _interval(each: Mapping[str, Any] | None) -> str:
    if each is None or each.get("value") is None:
        return "–"
    if each.get("low") is None:
        return figure(each["value"])
    return f"{each['value']:.3f} [{each['low']:.3f}, {each['high']:.3f}]"


def _words(name: str) -> str:
    return name.replace("_", " ")
