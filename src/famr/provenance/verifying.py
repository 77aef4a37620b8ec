"""`verify_run`: check a signed run against its signature, offline, with the public key alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from famr.data.request import Request, describe_samples
from famr.errors import GateError, RequestError
from famr.provenance.audit_history import require_audits_as_signed
from famr.provenance.canonical import canonical_json, parse_json
from famr.provenance.commitments import commit_image_file, commitment_key_id, read_commitment_key
from famr.provenance.dsse import open_envelope
from famr.provenance.keys import key_fingerprint
from famr.provenance.ledger import Ledger, check_anchor, read_ledger
from famr.provenance.statement import (
    ENVELOPE,
    PAYLOAD_TYPE,
    PREDICATE_TYPE,
    STATEMENT_TYPE,
    hash_run_files,
    printable_name,
)
from famr.storage.digests import COMPLETE

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

MAX_SHOWN = 50
"""How many changed files an error names."""


@dataclass(frozen=True)
class VerifiedRun:
    """A valid signature, and what it was checked against.

    Attributes:
        statement: The signed statement.
        key: Fingerprint of the public key.
        files: How many files are as they were signed; None where only the envelope was given.
        ledger: The ledger that holds the statement; None where none was given.
        seq: Index of the statement's entry in the ledger.
    """

    statement: Mapping[str, Any]
    key: str
    files: int | None
    ledger: Ledger | None
    seq: int | None

    def to_json(self) -> dict[str, Any]:
        """The outcome as plain values."""
        return {
            "verified": True,
            "key": self.key,
            "files": self.files,
            "ledger": None if self.ledger is None else self.ledger.to_json(),
            "seq": self.seq,
            "statement": dict(self.statement),
        }


def verify_run(
    path: Path, key: Ed25519PublicKey, *, ledger: Path | None = None, anchor: str | None = None
) -> VerifiedRun:
    """Verify a run folder, or an envelope alone.

    Args:
        path: The folder or the envelope.
        key: The public key of the signer.
        ledger: The ledger that must hold the statement; None checks no ledger.
        anchor: An earlier head of the ledger, ``ENTRIES:SHA256``, that the ledger must still contain.

    Raises:
        GateError: Anything is not as it was signed; the error names every changed, missing and added file.
        RequestError: A path does not exist, or `anchor` was given without `ledger`.
    """
    if not path.exists():
        raise RequestError("There is no such run or envelope.", where=str(path), fix="Check the path.")
    if anchor is not None and ledger is None:
        raise RequestError("An anchor is checked against a ledger.", fix="Give --ledger, too.")
    envelope = path / ENVELOPE if path.is_dir() else path
    if not envelope.is_file():
        raise _unsigned(path)
    payload = open_envelope(envelope.read_bytes(), PAYLOAD_TYPE, key, str(envelope))
    statement = _read_statement(payload, envelope)
    if path.is_dir() and (changes := find_changes(path, statement)):
        more = f"; and {len(changes) - MAX_SHOWN} more" if len(changes) > MAX_SHOWN else ""
        raise GateError(
            f"The run is not what was signed: {len(changes)} {'difference' if len(changes) == 1 else 'differences'}.",
            where="; ".join(changes[:MAX_SHOWN]) + more,
            fix="Restore the folder; or, if you are the signer and intended the change, sign it again.",
        )
    if path.is_dir():
        require_audits_as_signed(path, statement["predicate"])
    opened_ledger = None if ledger is None else read_ledger(ledger, key)
    seq = None if opened_ledger is None else _require_entry(opened_ledger, payload, statement)
    if opened_ledger is not None and anchor is not None:
        check_anchor(opened_ledger, anchor)
    files = len(statement["subject"]) if path.is_dir() else None
    return VerifiedRun(statement, key_fingerprint(key), files, opened_ledger, seq)


def find_changes(run: Path, statement: Mapping[str, Any]) -> list[str]:
    """List the differences between a run folder and a statement.

    Args:
        run: The folder of the run.
        statement: The signed statement.

    Returns:
        One line a file, such as ``changed: config.json``.
    """
    signed = {subject["name"]: subject["digest"]["sha256"] for subject in statement["subject"]}
    files = hash_run_files(run)
    present = files.digests
    return [
        *(f"changed: {printable_name(name)}" for name in signed if name in present and present[name] != signed[name]),
        *(f"missing: {printable_name(name)}" for name in signed if name not in present),
        *(f"added: {printable_name(name)}" for name in present if name not in signed),
        *(f"not an ordinary file: {printable_name(name)}" for name in files.unsignable),
    ]


def describe_request(predicate: Mapping[str, Any]) -> str:
    """The request of a statement in a few words.

    Args:
        predicate: The predicate of the statement.
    """
    request = predicate["request"]
    if request["kind"] == "samples":
        return describe_samples(request["samples"])
    return Request.from_json(request).describe()


def prove_forgotten(verified: VerifiedRun, image: Path, commitment_key: Path) -> None:
    """Show that an image was in the forget set of a verified run.

    Args:
        verified: The outcome of `verify_run`.
        image: The image file.
        commitment_key: File of the run's commitment key.

    Raises:
        DataError: The image cannot be decoded.
        GateError: The image was not in the forget set, or the run was signed without commitments.
        RequestError: The image or the key cannot be read, or the key is another run's.
    """
    forgotten = verified.statement["predicate"]["forgotten"]
    if forgotten["commitments"] is None:
        raise GateError(
            f"The run was signed without commitments: {forgotten['not_available']}.",
            fix="Nothing can be shown about single images.",
        )
    key = read_commitment_key(commitment_key)
    if commitment_key_id(key) != forgotten["key_id"]:
        raise RequestError(
            "The commitment key is that of another run.", where=str(commitment_key), fix="Give the key of this run."
        )
    if commit_image_file(image, key) not in forgotten["commitments"]:
        raise GateError(
            "No forget image has the pixels of this one.",
            where=str(image),
            fix="Give the original file: a resized or recompressed copy has other pixels.",
        )


def _unsigned(path: Path) -> GateError | RequestError:
    if not (path / COMPLETE).is_file():
        return RequestError("This is not a run folder.", where=str(path), fix="Give a run folder or an envelope.")
    return GateError(
        "UNSIGNED: this run has no signature; anything in it may have been changed.",
        where=str(path),
        fix="Ask its author to sign it: famr sign RUN --key FILE",
    )


def _read_statement(payload: bytes, envelope: Path) -> Mapping[str, Any]:
    """The statement of an envelope, if famr wrote it."""
    statement: Mapping[str, Any] = parse_json(payload)
    types = (statement.get("_type"), statement.get("predicateType"))
    if types != (STATEMENT_TYPE, PREDICATE_TYPE) or canonical_json(statement) != payload:
        raise GateError(
            "The envelope holds a statement of another type.",
            where=f"{envelope}: {types[0]}, {types[1]}",
            fix="Verify it with the tool that made it, or with another version of famr.",
        )
    return statement


def _require_entry(ledger: Ledger, payload: bytes, statement: Mapping[str, Any]) -> int:
    """The index of the statement's entry in its ledger."""
    ledger_id = statement["predicate"]["ledger"]
    if ledger_id != ledger.id:
        raise GateError(
            "The run was signed without a ledger." if ledger_id is None else "This is the ledger of another workspace.",
            where=f"{ledger.path}: this is {ledger.id}, the run's is {ledger_id}",
            fix="Give the run's own ledger.",
        )
    seq = ledger.seq_of(payload)
    if seq is None:
        raise GateError(
            "The run is not in its ledger.", where=str(ledger.path), fix="Sign it again: famr sign RUN --ledger FILE"
        )
    return seq
