"""`sign_run`: sign a finished run, write the envelope into its folder, and enter it in the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from famr.data import Images
from famr.errors import DataError, GateError, RequestError
from famr.provenance.audit_history import audit_history, require_signed_audits_kept
from famr.provenance.canonical import parse_json
from famr.provenance.commitments import (
    commit_images,
    commitment_key_id,
    default_key_path,
    read_or_create_commitment_key,
)
from famr.provenance.dsse import open_envelope, sign_envelope
from famr.provenance.keys import key_fingerprint
from famr.provenance.ledger import Ledger, append_entry, open_ledger
from famr.provenance.statement import (
    ENVELOPE,
    PAYLOAD_TYPE,
    Commitments,
    SignableRun,
    build_statement,
    hash_run_files,
    printable_name,
    read_signable_run,
)
from famr.provenance.verifying import find_changes
from famr.runs.folder import atomic_file
from famr.storage.digests import COMPLETE, seal_without
from famr.storage.leftovers import sweep_inside

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey


@dataclass(frozen=True)
class SignedRun:
    """The outcome of `sign_run`.

    Attributes:
        envelope: The signature file in the run folder.
        key: Fingerprint of the public key that verifies it.
        files: How many files the signature covers.
        commitments: How many distinct forget images were committed to; None where they were not available.
        commitment_key: File of the commitment key; None without commitments.
        ledger: The ledger the run was entered in; None without one.
        seq: Index of the run's entry in the ledger.
        kept: Whether an earlier signature was still valid and was kept.
    """

    envelope: Path
    key: str
    files: int
    commitments: int | None
    commitment_key: Path | None
    ledger: Ledger | None
    seq: int | None
    kept: bool

    def to_json(self) -> dict[str, Any]:
        """The outcome as plain values."""
        return {
            "envelope": str(self.envelope),
            "key": self.key,
            "files": self.files,
            "commitments": self.commitments,
            "commitment_key": None if self.commitment_key is None else str(self.commitment_key),
            "ledger": None if self.ledger is None else self.ledger.to_json(),
            "seq": self.seq,
            "kept": self.kept,
        }


def sign_run(
    run: Path,
    key: Ed25519PrivateKey,
    forget_images: Images | None,
    *,
    reason_missing: str | None = None,
    commitment_key: Path | None = None,
    ledger: Path | None = None,
) -> SignedRun:
    """Sign a finished run. A signature that is still valid is kept, so a second call changes nothing.

    Args:
        run: The folder of the run.
        key: The signer's private key.
        forget_images: The images to commit to; None signs without commitments.
        reason_missing: Why `forget_images` is None, as the statement gives it.
        commitment_key: File of the commitment key, created where it does not exist; None means beside the run.
        ledger: The ledger to enter the run in, created where it does not exist; None enters it in none.

    Raises:
        CheckpointError: The run is not finished or damaged, or an audit is missing.
        DataError: The number of forget images is not the one the run recorded.
        GateError: The ledger was tampered with.
        RequestError: The run holds files that cannot be signed, another signer's signature, or a key.
        StorageError: A file cannot be written.
    """
    records = read_signable_run(run)
    key_path = commitment_key or default_key_path(run)
    for path in (key_path, *(() if ledger is None else (ledger,))):
        require_outside(run, path)
    _require_same_count(records, forget_images, run)
    opened_ledger = None if ledger is None else open_ledger(ledger, key)
    payload = _valid_statement(run, key.public_key(), opened_ledger)
    kept = payload is not None
    if payload is None:
        commitments = Commitments(reason_missing=reason_missing)
        if forget_images is not None:
            secret = read_or_create_commitment_key(key_path)
            commitments = Commitments(commit_images(forget_images, secret), commitment_key_id(secret), reason_missing)
        ledger_id = None if opened_ledger is None else opened_ledger.id
        payload = build_statement(records, _digests_to_sign(run), commitments, ledger_id, audit_history(run))
        with atomic_file(run / ENVELOPE) as staging:
            staging.write_bytes(sign_envelope(PAYLOAD_TYPE, payload, key))
    if ledger is not None:
        weights = {"original_sha256": records.original_weights, "unlearned_sha256": records.unlearned_weights}
        opened_ledger = append_entry(ledger, payload, weights, key)
    statement: Mapping[str, Any] = parse_json(payload)
    values = statement["predicate"]["forgotten"]["commitments"]
    return SignedRun(
        run / ENVELOPE,
        key_fingerprint(key.public_key()),
        len(statement["subject"]),
        None if values is None else len(values),
        None if values is None else key_path,
        opened_ledger,
        None if opened_ledger is None else opened_ledger.seq_of(payload),
        kept,
    )


def require_outside(run: Path, path: Path) -> None:
    """Refuse a key or a ledger inside the run folder, which is handed to others.

    Args:
        run: The folder of the run.
        path: File of a key or a ledger.

    Raises:
        RequestError: The file is inside the folder.
    """
    if path.resolve().is_relative_to(run.resolve()):
        raise RequestError(
            "Keys and ledgers must be outside the run folder, which is handed to others.",
            where=str(path),
            fix="Give a path outside the folder.",
        )


def _require_same_count(records: SignableRun, forget_images: Images | None, run: Path) -> None:
    if forget_images is not None and records.forget_count not in (None, len(forget_images)):
        raise DataError(
            f"The run forgot {records.forget_count} images, the data now has {len(forget_images)} of them.",
            where=str(run),
            fix="Give the data as it was with --data, or sign without commitments: --without-data.",
        )


def _valid_statement(run: Path, key: Ed25519PublicKey, ledger: Ledger | None) -> bytes | None:
    """The statement of an earlier signature that this key made and that is still valid; None if there is none."""
    if not (run / ENVELOPE).is_file():
        return None
    try:
        payload = open_envelope((run / ENVELOPE).read_bytes(), PAYLOAD_TYPE, key, str(run / ENVELOPE))
    except GateError as error:
        raise RequestError(
            f"The run has a signature that is invalid or not by this key. {error.what}",
            where=str(run / ENVELOPE),
            fix="Move that file away to sign the run again.",
        ) from error
    statement = parse_json(payload)
    require_signed_audits_kept(run, statement["predicate"])
    ledger_id = statement["predicate"]["ledger"]
    if ledger is not None and ledger_id not in (None, ledger.id):
        raise RequestError(
            "The run is recorded in the ledger of another workspace.",
            where=f"{ledger.path}: this is {ledger.id}, the run's is {ledger_id}",
            fix="Give the run's own ledger; nothing was changed.",
        )
    return payload if not find_changes(run, statement) and (ledger is None or ledger_id == ledger.id) else None


def _digests_to_sign(run: Path) -> dict[str, str]:
    """SHA-256 of every file but the envelope, after an earlier envelope was taken out of COMPLETE.json."""
    sweep_inside(run)
    if (seal := seal_without(run, [ENVELOPE])) is not None:
        with atomic_file(run / COMPLETE) as staging:
            staging.write_text(seal, encoding="utf-8")
    files = hash_run_files(run)
    if files.unsignable:
        raise RequestError(
            "Links, devices and names that are not Unicode cannot be signed.",
            where="; ".join(printable_name(name) for name in files.unsignable),
            fix="Remove them from the run folder.",
        )
    return files.digests
