"""The verdict of an audit in one sentence, and the questions that its reader asks first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from famr.audit.gates import gate_title
from famr.audit.names import UNLEARNED

if TYPE_CHECKING:
    from famr.audit.verdict import Audit

MOST_NAMED = 4
"""Gates that the sentence names."""


def verdict_sentence(audit: Audit) -> str:
    """Verdict, "n of m gates with power pass", and what the verdict rests on or fails by.

    Args:
        audit: The audit.
    """
    verdict = audit.verdicts.get(UNLEARNED, "cannot tell")
    by_verdict: dict[str, list[str]] = {"pass": [], "fail": [], "cannot tell": []}
    for check in audit.counted:
        by_verdict[check.verdicts.get(UNLEARNED, "cannot tell")].append(check.name)
    count = f"{len(by_verdict['pass'])} of {len(audit.counted)} gates with power pass"
    if verdict == "fail":
        return f"Failed: {count}, {len(by_verdict['fail'])} fail ({_titles(by_verdict['fail'])})."
    if verdict == "pass":
        return f"Passed: {count}. This is evidence, not proof."
    if by_verdict["cannot tell"]:
        count += f", and {len(by_verdict['cannot tell'])} cannot tell"
    return " ".join([f"Cannot tell: {count}.", *audit.obstacles])


def _titles(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return "; ".join(gate_title(name) for name in names[:MOST_NAMED]) + more


def first_questions(record: Mapping[str, Any]) -> list[str]:
    """Against what, on which images, with what power: one line each, from the content of audit.json.

    Args:
        record: What `Audit.to_json` returned; parts that an earlier edition did not write are left out.
    """
    subject, lines = record.get("subject", {}), []
    references = subject.get("references")
    if references is not None:
        with_record = sum(reference["record"] is not None for reference in references)
        controls = ", ".join(subject.get("controls", {})) or "none"
        lines.append(
            f"Against: {len(references)} retrained models, {with_record} of them with a training record that shows "
            f"what they did not see; controls: {controls}."
        )
    if images := subject.get("images"):
        parts = ", ".join(f"{each['count']:,} {name.replace('_', ' ')}" for name, each in images.items())
        lines.append(
            f"On: {parts} images; {subject.get('calibration', 'how held-out images were chosen is not known')}."
        )
    checks = record.get("checks", [])
    if any("counts" in check for check in checks):
        left_out: dict[str, list[str]] = {}
        for check in checks:
            if check.get("not_counted"):
                left_out.setdefault(check["not_counted"], []).append(gate_title(check["name"]))
        counted = sum(check["counts"] for check in checks)
        lines.append(f"Power: {counted} of {len(checks)} gates count.")
        lines += [f"Not counted, {reason}: {'; '.join(names)}." for reason, names in left_out.items()]
    return lines
