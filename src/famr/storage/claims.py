"""A claim on an output place: a lock file beside it with the writer's process id, from the first check to the end.

The lock is the kernel's (flock), so that it goes with the process however that ends. A lock file without a living
owner is litter, and the next one who comes takes it over.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from famr.errors import StorageError


@dataclass(frozen=True)
class _Claim:
    handle: int
    lock: Path
    made: tuple[Path, ...]
    """Folders that had to be made for the lock; they go again if they stay empty."""


_held: dict[Path, _Claim] = {}
"""What this process has claimed and not yet released."""


def lock_file(target: Path) -> Path:
    """Where the lock of an output place lies."""
    return target.with_name(f".{target.name}.lock")


def claim(target: Path) -> None:
    """Make sure that nobody else writes there until `release`; claiming twice is claiming once."""
    place = _true_place(target)
    if place in _held:
        return
    lock = lock_file(place)
    made = _make_folders(place.parent)
    try:
        handle = _locked(lock)
    except OSError as error:
        _unmake(made)
        raise _refused(place.parent) from error
    if handle is None:
        raise StorageError(
            f"Another run writes there{_owner(lock)}.",
            where=str(target),
            fix="Wait for it, or name another folder.",
        )
    with suppress(OSError):  # on a full disk nobody learns whose it is; that there is no room is told later
        os.ftruncate(handle, 0)
        os.write(handle, f"{os.getpid()}\n".encode())
    _held[place] = _Claim(handle, lock, made)


def release(target: Path) -> None:
    """Give a claim back; one that is not held needs no giving back."""
    held = _held.pop(_true_place(target), None)
    if held is not None:
        _drop(held)


def release_all() -> None:
    """Give back whatever a command that ended early has claimed."""
    while _held:
        _drop(_held.popitem()[1])


@contextmanager
def locked(target: Path) -> Iterator[None]:
    """Hold a claim for the length of a block."""
    claim(target)
    try:
        yield
    finally:
        release(target)


def _true_place(target: Path) -> Path:
    """The same path for the same place, the last part unresolved: a link is a place of its own."""
    return target.absolute().parent.resolve() / target.name


def _locked(lock: Path) -> int | None:
    """An open handle that holds the lock; None where another process does."""
    while True:
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return None
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), lock.stat()):
                return handle
        os.close(handle)  # its owner removed the file between our opening and our locking it: try the new one


def _owner(lock: Path) -> str:
    try:
        pid = lock.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
    return f" (process {pid})" if pid.isdecimal() else ""


def _drop(held: _Claim) -> None:
    with suppress(OSError):
        held.lock.unlink()
    os.close(held.handle)
    _unmake(held.made)


def _make_folders(folder: Path) -> tuple[Path, ...]:
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _refused(next(place for place in folder.parents if place.exists())) from error
    return tuple(missing)


def _unmake(made: tuple[Path, ...]) -> None:
    for folder in made:
        with suppress(OSError):  # in use by now
            folder.rmdir()


def _refused(folder: Path) -> StorageError:
    return StorageError("The folder cannot be written to.", where=str(folder), fix="Name another.")
