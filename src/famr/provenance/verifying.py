"""`verify`: hold a signed run against its signature, offline, with the public key alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from famr.data.request import Request, describe_samples
from famr.errors import GateError, RequestError
from famr.provenance.canonical import canonical, parse
from famr.provenance.commitments import commit_file, key_id, read_key
from famr.provenance.dsse import opened
from famr.provenance.keys import fingerprint
from famr.provenance.ledger import Ledger, check_anchor, read_ledger
from famr.provenance.statement import ENVELOPE, PAYLOAD_TYPE, PREDICATE_TYPE, STATEMENT_TYPE, as_shown, files_of
from famr.storage.digests import COMPLETE

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

SHOWN = 50


@dataclass(frozen=True)
class Verified:
    """A signature that holds, and what it was held against."""

    statement: Mapping[str, Any]
    key: str
    files: int | None
    """How many files are as they were signed; None where only the envelope was given."""
    ledger: Ledger | None
    seq: int | None

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "verified": True,
            "key": self.key,
            "files": self.files,
            "ledger": None if self.ledger is None else self.ledger.to_json(),
            "seq": self.seq,
            "statement": dict(self.statement),
        }


def verify(place: Path, key: Ed25519PublicKey, *, ledger: Path | None = None, anchor: str | None = None) -> Verified:
    """Check a run folder, or an envelope alone; a GateError names everything that is not as it was signed."""
    if not place.exists():
        raise RequestError("There is no such run or envelope.", where=str(place), fix="Check the path.")
    if anchor is not None and ledger is None:
        raise RequestError("An anchor is checked against a ledger.", fix="Give --ledger, too.")
    envelope = place / ENVELOPE if place.is_dir() else place
    if not envelope.is_file():
        raise _unsigned(place)
    payload = opened(envelope.read_bytes(), PAYLOAD_TYPE, key, str(envelope))
    said = _read(payload, envelope)
    if place.is_dir() and (found := changes(place, said)):
        more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        raise GateError(
            f"The run is not what was signed: {len(found)} {'difference' if len(found) == 1 else 'differences'}.",
            where="; ".join(found[:SHOWN]) + more,
            fix="Restore the folder; or, if you are the signer and meant the change, sign it again.",
        )
    book = None if ledger is None else read_ledger(ledger, key)
    seq = None if book is None else _place_in(book, payload, said)
    if book is not None and anchor is not None:
        check_anchor(book, anchor)
    return Verified(said, fingerprint(key), len(said["subject"]) if place.is_dir() else None, book, seq)


def changes(run: Path, said: Mapping[str, Any]) -> list[str]:
    """What in a folder is not as a statement says: each file by name, with what happened to it."""
    signed = {subject["name"]: subject["digest"]["sha256"] for subject in said["subject"]}
    files = files_of(run)
    found = files.digests
    return [
        *(f"changed: {as_shown(name)}" for name in signed if name in found and found[name] != signed[name]),
        *(f"missing: {as_shown(name)}" for name in signed if name not in found),
        *(f"added: {as_shown(name)}" for name in found if name not in signed),
        *(f"not an ordinary file: {as_shown(name)}" for name in files.odd),
    ]


def request_of(predicate: Mapping[str, Any]) -> str:
    """What was asked for, in a few words."""
    request = predicate["request"]
    if request["kind"] == "samples":
        return describe_samples(request["samples"])
    return Request.from_json(request).describe()


def prove(verified: Verified, image: Path, commitment_key: Path) -> None:
    """Show that an image was among the forgotten ones; a GateError where it was not."""
    forgotten = verified.statement["predicate"]["forgotten"]
    if forgotten["commitments"] is None:
        raise GateError(
            f"The run was signed without commitments: {forgotten['not_available']}.",
            fix="Nothing can be shown about single images.",
        )
    key = read_key(commitment_key)
    if key_id(key) != forgotten["key_id"]:
        raise RequestError(
            "The commitment key is that of another run.", where=str(commitment_key), fix="Give the key of this run."
        )
    if commit_file(image, key) not in forgotten["commitments"]:
        raise GateError(
            "No forgotten image has the pixels of this one.",
            where=str(image),
            fix="Give the very file: a copy that was resized or compressed anew has other pixels.",
        )


def _unsigned(place: Path) -> GateError | RequestError:
    if not (place / COMPLETE).is_file():
        return RequestError("This is no run folder.", where=str(place), fix="Name a run folder or an envelope.")
    return GateError(
        "UNSIGNED: nobody vouches for this run; anything in it can have been changed.",
        where=str(place),
        fix="Ask its maker to sign it: famr sign RUN --key FILE",
    )


def _read(payload: bytes, envelope: Path) -> Mapping[str, Any]:
    """The statement, if it is of the kind that famr signs."""
    said: Mapping[str, Any] = parse(payload)
    kinds = (said.get("_type"), said.get("predicateType"))
    if kinds != (STATEMENT_TYPE, PREDICATE_TYPE) or canonical(said) != payload:
        raise GateError(
            "The envelope holds another kind of statement.",
            where=f"{envelope}: {kinds[0]}, {kinds[1]}",
            fix="Verify it with the tool that made it, or with another version of famr.",
        )
    return said


def _place_in(book: Ledger, payload: bytes, said: Mapping[str, Any]) -> int:
    home = said["predicate"]["ledger"]
    if home != book.id:
        raise GateError(
            "The run was signed without a ledger." if home is None else "This is the ledger of another workspace.",
            where=f"{book.path}: this is {book.id}, the run's is {home}",
            fix="Name the run's own ledger.",
        )
    seq = book.seq_of(payload)
    if seq is None:
        raise GateError(
            "The run is not in its ledger.", where=str(book.path), fix="Sign it again: famr sign RUN --ledger FILE"
        )
    return seq
