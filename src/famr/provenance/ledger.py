"""A ledger of all signed statements: one JSON line an entry, each with the hash of the line before.

A hash chain alone does not show that its end was cut off. The head, a DSSE envelope in ``LEDGER.head``, therefore
holds the number of lines and the last line, signed. It is written first: if the process dies before the line is
written, the next entry restores the line from the head. Without the key nobody can change, insert, reorder or cut
entries. The owner of the key could start a new ledger; that shows only against an earlier head which somebody else
has stored (`check_anchor`).
"""

from __future__ import annotations

import hashlib
import itertools
import os
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from famr.errors import GateError, RequestError, StorageError
from famr.provenance.canonical import canonical_json, parse_json
from famr.provenance.dsse import open_envelope, sign_envelope
from famr.provenance.keys import key_fingerprint
from famr.provenance.statement import utc_now
from famr.runs.folder import atomic_file

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

HEAD_TYPE = "application/vnd.famr.ledger-head+json"
DO_NOT_RELY = "Do not rely on it; restore both files from a copy."


@dataclass(frozen=True)
class Ledger:
    """A ledger whose chain and head were verified.

    Attributes:
        path: Its file.
        id: Random id that signed statements name.
        entries: The lines, the oldest first; the first one describes the ledger itself.
        head: SHA-256 of the last line.
    """

    path: Path
    id: str
    entries: tuple[Mapping[str, Any], ...]
    head: str

    def to_json(self) -> dict[str, Any]:
        """The id, the number of entries and the anchor as plain values."""
        return {"id": self.id, "entries": len(self.entries), "anchor": self.anchor}

    @property
    def anchor(self) -> str:
        """``ENTRIES:SHA256`` of the head, to be stored outside the ledger."""
        return f"{len(self.entries)}:{self.head}"

    def seq_of(self, statement: bytes) -> int | None:
        """The index of a statement's entry; None where the ledger does not hold it.

        Args:
            statement: The canonical bytes of the statement.
        """
        digest = hashlib.sha256(statement).hexdigest()
        return next((entry["seq"] for entry in self.entries if entry.get("statement_sha256") == digest), None)


def head_path(path: Path) -> Path:
    """The path of a ledger's signed head, beside the ledger.

    Args:
        path: The ledger.
    """
    return path.with_name(f"{path.name}.head")


def read_ledger(path: Path, key: Ed25519PublicKey) -> Ledger:
    """Read a ledger and verify every line against the chain and the signed head.

    Args:
        path: The ledger.
        key: The public key of the signer.

    Raises:
        GateError: The ledger or its head was changed, cut or extended.
        RequestError: The ledger does not exist.
    """
    head = _read_head(path, key)
    lines = _read_lines(path)
    entries = _verify_chain(path, lines, head["ledger"])
    if len(lines) < head["length"]:
        raise GateError(
            f"The ledger was cut: it ends after {len(lines)} of the {head['length']} entries that its head counts.",
            where=f"{path}: entry {len(lines)} is missing",
            fix=f"{DO_NOT_RELY} If only the last entry is missing, `famr sign --ledger` restores it.",
        )
    if len(lines) > head["length"]:
        raise GateError(
            f"The ledger holds {len(lines) - head['length']} entries that are not signed.",
            where=f"{path}: entry {head['length']}",
            fix=DO_NOT_RELY,
        )
    if lines[-1] != canonical_json(head["last"]):
        raise GateError(
            "The last entry of the ledger is not the one that was signed.",
            where=f"{path}: entry {len(lines) - 1}",
            fix=DO_NOT_RELY,
        )
    _warn_of_wrong_clock(entries)
    return Ledger(path, head["ledger"], entries, _sha256(lines[-1]))


def open_ledger(path: Path, key: Ed25519PrivateKey) -> Ledger:
    """Open a ledger for writing: restore a last line that a killed process did not write, or start a new ledger.

    Args:
        path: The ledger; it is created where neither it nor its head exists.
        key: The signer's private key.

    Raises:
        GateError: The ledger or its head was changed, cut or extended.
        StorageError: The ledger cannot be written.
    """
    with _locked(path):
        if not path.exists() and not head_path(path).exists():
            first = {"ledger": str(uuid.uuid4()), "seq": 0, "previous": None, "time": utc_now()}
            _write(path, [], first | {"key": key_fingerprint(key.public_key())}, key)
        else:
            _restore_last_line(path, key)
        return read_ledger(path, key.public_key())


def append_entry(path: Path, statement: bytes, about: Mapping[str, Any], key: Ed25519PrivateKey) -> Ledger:
    """Add a statement to a ledger; nothing changes if the ledger holds it already.

    Args:
        path: The ledger.
        statement: The canonical bytes of the statement; the entry holds their SHA-256.
        about: More fields of the entry.
        key: The signer's private key.

    Raises:
        GateError: The ledger or its head was changed, cut or extended.
        StorageError: The ledger cannot be written.
    """
    with _locked(path):
        ledger = read_ledger(path, key.public_key())
        if ledger.seq_of(statement) is not None:
            return ledger
        entry = {
            "ledger": ledger.id,
            "seq": len(ledger.entries),
            "previous": ledger.head,
            "time": utc_now(),
            "statement_sha256": hashlib.sha256(statement).hexdigest(),
            **about,
        }
        _write(path, _read_lines(path), entry, key)
        return read_ledger(path, key.public_key())


def check_anchor(ledger: Ledger, anchor: str) -> None:
    """Check that a ledger still contains an earlier head.

    Args:
        ledger: The ledger as it now is.
        anchor: The earlier head as ``ENTRIES:SHA256``.

    Raises:
        GateError: The ledger was rewritten or rolled back.
        RequestError: The anchor has another form.
    """
    count, _, digest = anchor.partition(":")
    if not count.isdecimal() or int(count) < 1 or len(digest) != 64:
        raise RequestError(f"An anchor is ENTRIES:SHA256, got {anchor!r}.", fix="Give it as `famr sign` printed it.")
    length = int(count)
    lines = [canonical_json(entry) for entry in ledger.entries]
    if length > len(lines) or _sha256(lines[length - 1]) != digest:
        raise GateError(
            f"The ledger does not contain the head of {length} entries: it was rewritten or rolled back.",
            where=f"{ledger.path}: now {len(lines)}:{ledger.head}",
            fix="Ask the signer for the complete ledger.",
        )


def _read_head(path: Path, key: Ed25519PublicKey) -> Mapping[str, Any]:
    head = head_path(path)
    if not path.exists() and not head.exists():
        raise RequestError("There is no such ledger.", where=str(path), fix="Check the path.")
    for file in (path, head):
        if not file.is_file():
            raise GateError(
                f"The ledger's {'signed head' if file is head else 'file'} is missing.",
                where=str(file),
                fix=f"{DO_NOT_RELY} Nothing was changed.",
            )
    return _open_head(head, key)


def _open_head(head: Path, key: Ed25519PublicKey) -> Mapping[str, Any]:
    content: Mapping[str, Any] = parse_json(open_envelope(head.read_bytes(), HEAD_TYPE, key, str(head)))
    return content


def _read_lines(path: Path) -> list[bytes]:
    *lines, rest = (path.read_bytes() if path.exists() else b"").split(b"\n")
    if rest:  # a line is written whole or not at all
        raise _tampered(path, len(lines), "is incomplete")
    return lines


def _verify_chain(path: Path, lines: list[bytes], ledger: str) -> tuple[Mapping[str, Any], ...]:
    """Every line is canonical, numbered, of this ledger, and holds the hash of the line before."""
    entries: list[Mapping[str, Any]] = []
    for index, line in enumerate(lines):
        try:
            entry = parse_json(line)
            unchanged = canonical_json(entry) == line
            ledger_id, seq, previous = entry["ledger"], entry["seq"], entry["previous"]
        except (ValueError, KeyError, TypeError) as error:
            raise _tampered(path, index, "is damaged") from error
        if not unchanged:
            raise _tampered(path, index, "is not as it was written")
        if ledger_id != ledger:
            raise GateError(
                "The ledger and its head belong to different workspaces.",
                where=f"{path}: entry {index} is of {ledger_id}, the head of {ledger}",
                fix="Give the ledger of this workspace, with its own head beside it; nothing was changed.",
            )
        if seq != index:
            raise _tampered(path, index, f"is numbered {seq}")
        if previous != (_sha256(lines[index - 1]) if index else None):
            raise _tampered(path, index - 1, f"was changed, or entry {index} was")
        entries.append(entry)
    return tuple(entries)


def _warn_of_wrong_clock(entries: Sequence[Mapping[str, Any]]) -> None:
    """The chain proves the order of the entries; a clock that contradicts it should be checked by somebody."""
    times = [str(entry.get("time")) for entry in entries]
    for index, (before, after) in enumerate(itertools.pairwise(times), start=1):
        if after < before:
            warnings.warn(
                f"Entry {index} of the ledger is dated {after}, before entry {index - 1} ({before}): a clock was wrong "
                "or was set back. The order of the entries is certain, their times are not.",
                stacklevel=2,
            )
            return


def _tampered(path: Path, index: int, what: str) -> GateError:
    return GateError(
        f"The ledger was tampered with: entry {index} {what}.", where=f"{path}: entry {index}", fix=DO_NOT_RELY
    )


def _restore_last_line(path: Path, key: Ed25519PrivateKey) -> None:
    """Write the last line if only the signed head holds it."""
    if not head_path(path).is_file():
        return
    head = _open_head(head_path(path), key.public_key())
    lines = _read_lines(path)
    last = head["last"]
    follows = last["previous"] == (_sha256(lines[-1]) if lines else None)
    if len(lines) == head["length"] - 1 and follows:
        _verify_chain(path, lines, head["ledger"])
        _write_lines(path, [*lines, canonical_json(last)])


def _write(path: Path, lines: list[bytes], entry: Mapping[str, Any], key: Ed25519PrivateKey) -> None:
    payload = {"ledger": entry["ledger"], "length": len(lines) + 1, "last": entry}
    with atomic_file(head_path(path)) as staging:
        staging.write_bytes(sign_envelope(HEAD_TYPE, canonical_json(payload), key))
    _write_lines(path, [*lines, canonical_json(entry)])


def _write_lines(path: Path, lines: list[bytes]) -> None:
    with atomic_file(path) as staging:
        staging.write_bytes(b"".join(line + b"\n" for line in lines))


def _sha256(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One writer at a time; the lock is on the folder, so that no lock file is left."""
    import fcntl

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = os.open(path.parent, os.O_RDONLY)
    except OSError as error:
        raise StorageError(f"The ledger cannot be written here: {error.strerror}.", where=str(path.parent)) from error
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)
