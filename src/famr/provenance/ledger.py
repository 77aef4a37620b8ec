"""A ledger of everything that was signed: one JSON line an entry, each holding the hash of the line before it.

A chain alone does not show that its end was cut off. So the head, a DSSE envelope in `LEDGER.head`, holds the number
of lines and the last of them, signed. It is written first: should the process die before the line is, the next
entry puts the line back from it. What nobody without the key can do is change, add, reorder or cut; what its owner
could do is to begin anew, which only shows against a head that somebody else has kept (`check_anchor`).
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
from famr.provenance.canonical import canonical, parse
from famr.provenance.dsse import enveloped, opened
from famr.provenance.keys import fingerprint
from famr.provenance.statement import now
from famr.runs.folder import atomic_file

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

HEAD_TYPE = "application/vnd.famr.ledger-head+json"
DO_NOT_RELY = "Do not rely on it; restore both files from a copy."


@dataclass(frozen=True)
class Ledger:
    """A ledger that was found whole."""

    path: Path
    id: str
    entries: tuple[Mapping[str, Any], ...]
    head: str
    """SHA-256 of the last line: worth keeping elsewhere, with the number of entries."""

    def to_json(self) -> dict[str, Any]:
        """As plain values; `anchor` is what to keep elsewhere."""
        return {"id": self.id, "entries": len(self.entries), "anchor": self.anchor}

    @property
    def anchor(self) -> str:
        """The head as it is written down elsewhere."""
        return f"{len(self.entries)}:{self.head}"

    def seq_of(self, statement: bytes) -> int | None:
        """Where a statement stands in the ledger."""
        digest = hashlib.sha256(statement).hexdigest()
        return next((entry["seq"] for entry in self.entries if entry.get("statement_sha256") == digest), None)


def head_file(path: Path) -> Path:
    """The signed head, beside its ledger."""
    return path.with_name(f"{path.name}.head")


def read_ledger(path: Path, key: Ed25519PublicKey) -> Ledger:
    """Read a ledger and check every line of it against the chain and the signed head."""
    head = _read_head(path, key)
    lines = _lines(path)
    entries = _chain(path, lines, head["ledger"])
    if len(lines) < head["length"]:
        raise GateError(
            f"The ledger was cut: it ends after {len(lines)} of the {head['length']} entries that its head speaks of.",
            where=f"{path}: entry {len(lines)} is missing",
            fix=f"{DO_NOT_RELY} Where only the last is missing, `famr sign --ledger` puts it back.",
        )
    if len(lines) > head["length"]:
        raise GateError(
            f"The ledger holds {len(lines) - head['length']} entries that nobody signed.",
            where=f"{path}: entry {head['length']}",
            fix=DO_NOT_RELY,
        )
    if lines[-1] != canonical(head["last"]):
        raise GateError(
            "The last entry of the ledger is not the one that was signed.",
            where=f"{path}: entry {len(lines) - 1}",
            fix=DO_NOT_RELY,
        )
    _watch_the_clock(entries)
    return Ledger(path, head["ledger"], entries, _sha256(lines[-1]))


def open_ledger(path: Path, key: Ed25519PrivateKey) -> Ledger:
    """The ledger in a file, mended where a process died while writing to it; a new one where there is none."""
    with _locked(path):
        if not path.exists() and not head_file(path).exists():
            first = {"ledger": str(uuid.uuid4()), "seq": 0, "previous": None, "time": now()}
            _write(path, [], first | {"key": fingerprint(key.public_key())}, key)
        else:
            _mend(path, key)
        return read_ledger(path, key.public_key())


def append(path: Path, statement: bytes, about: Mapping[str, Any], key: Ed25519PrivateKey) -> Ledger:
    """Enter a statement, once: where it stands in the ledger already, nothing changes."""
    with _locked(path):
        ledger = read_ledger(path, key.public_key())
        if ledger.seq_of(statement) is not None:
            return ledger
        entry = {
            "ledger": ledger.id,
            "seq": len(ledger.entries),
            "previous": ledger.head,
            "time": now(),
            "statement_sha256": hashlib.sha256(statement).hexdigest(),
            **about,
        }
        _write(path, _lines(path), entry, key)
        return read_ledger(path, key.public_key())


def check_anchor(ledger: Ledger, anchor: str) -> None:
    """Compare with a head that was written down elsewhere as `ENTRIES:SHA256`."""
    count, _, digest = anchor.partition(":")
    if not count.isdecimal() or int(count) < 1 or len(digest) != 64:
        raise RequestError(f"An anchor is ENTRIES:SHA256, got {anchor!r}.", fix="As `famr sign` showed it.")
    then = int(count)
    lines = [canonical(entry) for entry in ledger.entries]
    if then > len(lines) or _sha256(lines[then - 1]) != digest:
        raise GateError(
            f"The ledger is not the one that had {then} entries and that head: it was rewritten or rolled back.",
            where=f"{ledger.path}: now {len(lines)}:{ledger.head}",
            fix="Ask the signer for the whole ledger.",
        )


def _read_head(path: Path, key: Ed25519PublicKey) -> Mapping[str, Any]:
    head = head_file(path)
    if not path.exists() and not head.exists():
        raise RequestError("There is no such ledger.", where=str(path), fix="Check the path.")
    for file in (path, head):
        if not file.is_file():
            raise GateError(
                "The ledger has lost its signed head." if file is head else "The ledger is gone; its head is left.",
                where=str(file),
                fix=f"{DO_NOT_RELY} Nothing was changed.",
            )
    return _opened_head(head, key)


def _opened_head(head: Path, key: Ed25519PublicKey) -> Mapping[str, Any]:
    content: Mapping[str, Any] = parse(opened(head.read_bytes(), HEAD_TYPE, key, str(head)))
    return content


def _lines(path: Path) -> list[bytes]:
    *lines, rest = (path.read_bytes() if path.exists() else b"").split(b"\n")
    if rest:  # lines are never written in part
        raise _bad_entry(path, len(lines), "has no end")
    return lines


def _chain(path: Path, lines: list[bytes], ledger: str) -> tuple[Mapping[str, Any], ...]:
    """Every line canonical, in its place, of this ledger, and holding the hash of the one before."""
    entries: list[Mapping[str, Any]] = []
    for place, line in enumerate(lines):
        try:
            entry = parse(line)
            whole = canonical(entry) == line
            found, seq, previous = entry["ledger"], entry["seq"], entry["previous"]
        except (ValueError, KeyError, TypeError) as error:
            raise _bad_entry(path, place, "is damaged") from error
        if not whole:
            raise _bad_entry(path, place, "is not as it was written")
        if found != ledger:
            raise GateError(
                "The ledger and its head belong to different workspaces.",
                where=f"{path}: entry {place} is of {found}, the head of {ledger}",
                fix="Name the ledger of this workspace, with its own head beside it; nothing was changed.",
            )
        if seq != place:
            raise _bad_entry(path, place, f"says that it is entry {seq}")
        if previous != (_sha256(lines[place - 1]) if place else None):
            raise _bad_entry(path, place - 1, f"was changed, or entry {place} was")
        entries.append(entry)
    return tuple(entries)


def _watch_the_clock(entries: Sequence[Mapping[str, Any]]) -> None:
    """The chain tells what came first, whatever a clock said; but somebody should look at a clock that disagrees."""
    times = [str(entry.get("time")) for entry in entries]
    for place, (before, after) in enumerate(itertools.pairwise(times), start=1):
        if after < before:
            warnings.warn(
                f"Entry {place} of the ledger is dated {after}, before entry {place - 1} ({before}): a clock was wrong "
                "or went backwards. The order of the entries holds, their times do not.",
                stacklevel=2,
            )
            return


def _bad_entry(path: Path, place: int, what: str) -> GateError:
    return GateError(
        f"The ledger was tampered with: entry {place} {what}.", where=f"{path}: entry {place}", fix=DO_NOT_RELY
    )


def _mend(path: Path, key: Ed25519PrivateKey) -> None:
    """Put back the last line where the head, which is signed, has it and the ledger has not."""
    if not head_file(path).is_file():
        return
    head = _opened_head(head_file(path), key.public_key())
    lines = _lines(path)
    last = head["last"]
    follows = last["previous"] == (_sha256(lines[-1]) if lines else None)
    if len(lines) == head["length"] - 1 and follows:
        _chain(path, lines, head["ledger"])
        _write_lines(path, [*lines, canonical(last)])


def _write(path: Path, lines: list[bytes], entry: Mapping[str, Any], key: Ed25519PrivateKey) -> None:
    payload = {"ledger": entry["ledger"], "length": len(lines) + 1, "last": entry}
    with atomic_file(head_file(path)) as staging:
        staging.write_bytes(enveloped(HEAD_TYPE, canonical(payload), key))
    _write_lines(path, [*lines, canonical(entry)])


def _write_lines(path: Path, lines: list[bytes]) -> None:
    with atomic_file(path) as staging:
        staging.write_bytes(b"".join(line + b"\n" for line in lines))


def _sha256(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One writer at a time; the lock is on the folder, so that nothing is left behind."""
    import fcntl

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = os.open(path.parent, os.O_RDONLY)
    except OSError as error:
        raise StorageError(f"The ledger cannot be kept here: {error.strerror}.", where=str(path.parent)) from error
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)
