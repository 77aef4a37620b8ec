"""The audits of a run as a signed statement has them: how many, when, against what, and with which verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from famr.errors import CheckpointError, GateError
from famr.provenance.canonical import canonical_json, parse_json, signable
from famr.runs.audits import RecordedAudit, describe_audits, read_audits


def audit_history(run: Path) -> dict[str, Any]:
    """Every audit of a run, the first one first; what an audit does not record is null.

    Args:
        run: The run folder.

    Raises:
        CheckpointError: An earlier audit is missing or was changed.
    """
    audits = [_entry(audit) for audit in read_audits(run)]
    return {"count": len(audits), "each": audits}


def _entry(audit: RecordedAudit) -> dict[str, Any]:
    references = audit.subject.get("retrained_sha256")
    return {
        "number": audit.number,
        "made_at": audit.made_at,
        "verdict": audit.verdict,
        "sha256": audit.sha256,
        "unlearned_sha256": audit.subject.get("unlearned_sha256"),
        "seed": audit.subject.get("seed"),
        "quick": audit.subject.get("quick"),
        "references": None if references is None else len(references),
        "references_sha256": references,
    }


def require_audits_as_signed(run: Path, predicate: Mapping[str, Any]) -> None:
    """Check the audits of a statement against those in the folder; a statement of the first edition has none.

    Args:
        run: The run folder.
        predicate: Of the statement.

    Raises:
        GateError: They differ, or the audits in the folder are not a whole chain.
    """
    if "audits" not in predicate:
        return
    try:
        found = parse_json(canonical_json(signable(audit_history(run))))
    except CheckpointError as error:
        raise GateError(error.what, where=error.where, fix="Ask the signer for all audits of the run.") from error
    if found != predicate["audits"]:
        raise GateError(
            "The statement tells other audits than those in the folder.",
            where=f"{run}: {_in_words(found)}; the statement: {_in_words(predicate['audits'])}",
            fix="Do not rely on it; ask the signer, or sign the run again with this version of famr.",
        )


def require_signed_audits_kept(run: Path, predicate: Mapping[str, Any]) -> None:
    """Check, before a run is signed again, that the audits of its earlier signature are still the first ones.

    Args:
        run: The run folder.
        predicate: Of the earlier statement.

    Raises:
        CheckpointError: An audit that was signed is missing or was changed.
    """
    signed = predicate.get("audits", {"each": []})["each"]
    found = [audit.sha256 for audit in read_audits(run)]
    if found[: len(signed)] != [audit["sha256"] for audit in signed]:
        raise CheckpointError(
            "An audit that was signed before is missing or was changed.",
            where=f"{run}: {describe_audits([audit['verdict'] for audit in signed])} were signed",
            fix="Restore the run folder from a copy; audits are never removed or replaced.",
        )


def describe_signed_audits(predicate: Mapping[str, Any]) -> str:
    """The audits of a statement on one line.

    Args:
        predicate: Of the statement.

    >>> describe_signed_audits({"audits": {"count": 2, "each": [{"verdict": "fail"}, {"verdict": "pass"}]}})
    '2 audits: fail, pass (the latest)'
    """
    if "audits" not in predicate:
        return "their number is not in this statement, which is of the first edition"
    return _in_words(predicate["audits"])


def _in_words(audits: Mapping[str, Any]) -> str:
    return describe_audits([audit["verdict"] for audit in audits["each"]])
