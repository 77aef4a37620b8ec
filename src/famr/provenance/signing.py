"""`sign`: bind a finished run, leave the envelope in its folder, enter it in the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from famr.data import Images
from famr.errors import DataError, GateError, RequestError
from famr.provenance.canonical import parse
from famr.provenance.commitments import commit, key_at, key_file, key_id
from famr.provenance.dsse import enveloped, opened
from famr.provenance.keys import fingerprint
from famr.provenance.ledger import Ledger, append, open_ledger
from famr.provenance.statement import ENVELOPE, PAYLOAD_TYPE, Facts, as_shown, facts_of, files_of, statement
from famr.provenance.verifying import changes
from famr.runs.folder import atomic_file
from famr.storage.digests import COMPLETE, seal_without
from famr.storage.leftovers import sweep_inside

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey


@dataclass(frozen=True)
class Signed:
    """What `sign` did."""

    envelope: Path
    key: str
    """The fingerprint of the public key that verifies it."""
    files: int
    commitments: int | None
    """How many distinct images were committed to; None where they were not at hand."""
    commitment_key: Path | None
    ledger: Ledger | None
    seq: int | None
    """The place in the ledger."""
    kept: bool
    """Whether the run was signed before, and nothing in it has changed since."""

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
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


def sign(
    run: Path,
    key: Ed25519PrivateKey,
    forgotten: Images | None,
    *,
    why_none: str | None = None,
    commitment_key: Path | None = None,
    ledger: Path | None = None,
) -> Signed:
    """Sign a finished run as it now is. A run whose signature still holds keeps it, so that a second call is harmless.

    `forgotten` are the images to commit to; where they are gone, `why_none` says so in the statement.
    """
    facts = facts_of(run)
    secret = commitment_key or key_file(run)
    for place in (secret, *(() if ledger is None else (ledger,))):
        require_outside(run, place)
    _require_same_count(facts, forgotten, run)
    book = None if ledger is None else open_ledger(ledger, key)
    payload = _still_valid(run, key.public_key(), book)
    kept = payload is not None
    if payload is None:
        secret_key = key_at(secret) if forgotten is not None else None
        payload = statement(
            facts,
            _files_to_bind(run),
            None if forgotten is None or secret_key is None else commit(forgotten, secret_key),
            None if secret_key is None else key_id(secret_key),
            why_none,
            None if book is None else book.id,
        )
        with atomic_file(run / ENVELOPE) as staging:
            staging.write_bytes(enveloped(PAYLOAD_TYPE, payload, key))
    if ledger is not None:
        weights = {"original_sha256": facts.original_weights, "unlearned_sha256": facts.unlearned_weights}
        book = append(ledger, payload, weights, key)
    said: Mapping[str, Any] = parse(payload)
    commitments = said["predicate"]["forgotten"]["commitments"]
    return Signed(
        run / ENVELOPE,
        fingerprint(key.public_key()),
        len(said["subject"]),
        None if commitments is None else len(commitments),
        None if commitments is None else secret,
        book,
        None if book is None else book.seq_of(payload),
        kept,
    )


def require_outside(run: Path, place: Path) -> None:
    """Refuse a secret, or a ledger, in the folder that is handed to others."""
    if place.resolve().is_relative_to(run.resolve()):
        raise RequestError(
            "Keys and ledger may not lie in the run folder: it is what others get to see.",
            where=str(place),
            fix="Keep them elsewhere.",
        )


def _require_same_count(facts: Facts, forgotten: Images | None, run: Path) -> None:
    if forgotten is not None and facts.forget_count not in (None, len(forgotten)):
        raise DataError(
            f"The run forgot {facts.forget_count} images, the data now has {len(forgotten)} of them.",
            where=str(run),
            fix="Give the data as it was with --data, or sign without commitments: --without-data.",
        )


def _still_valid(run: Path, key: Ed25519PublicKey, book: Ledger | None) -> bytes | None:
    """The statement that the run is signed with, if this key made it and it still holds; None to sign anew."""
    if not (run / ENVELOPE).is_file():
        return None
    try:
        payload = opened((run / ENVELOPE).read_bytes(), PAYLOAD_TYPE, key, str(run / ENVELOPE))
    except GateError as error:
        raise RequestError(
            f"The run has a signature that is not yours or does not hold. {error.what}",
            where=str(run / ENVELOPE),
            fix="Move that file away to sign anew.",
        ) from error
    said = parse(payload)
    home = said["predicate"]["ledger"]
    if book is not None and home not in (None, book.id):
        raise RequestError(
            "The run is recorded in the ledger of another workspace.",
            where=f"{book.path}: this is {book.id}, the run's is {home}",
            fix="Name the run's own ledger; nothing was changed.",
        )
    return payload if not changes(run, said) and (book is None or home == book.id) else None


def _files_to_bind(run: Path) -> dict[str, str]:
    """Every file but the envelope, after the run's own seal was freed of an earlier envelope."""
    sweep_inside(run)
    if (let_go := seal_without(run, [ENVELOPE])) is not None:
        with atomic_file(run / COMPLETE) as staging:
            staging.write_text(let_go, encoding="utf-8")
    found = files_of(run)
    if found.odd:
        raise RequestError(
            "Links, devices and names that are no text cannot be signed.",
            where="; ".join(as_shown(name) for name in found.odd),
            fix="Take them out of the run folder.",
        )
    return found.digests
