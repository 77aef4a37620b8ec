"""Locks on output paths: one process at a time writes to a path, from its first check to its last rename.

The lock of `runs/x` is the file `runs/.x.lock`, which holds the owner's process id. The lock itself is the kernel's
(`filelock`, flock), so it ends with the process however that ends; the lock file of a dead process is taken over.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout

from famr.errors import StorageError

RETRY_SECONDS = 0.1
"""An owner that releases its lock removes the file; a process that had just opened that file tries again."""


@dataclass(frozen=True)
class _HeldLock:
    """A lock of this process, and the folders created for its file, innermost first."""

    file_lock: BaseFileLock
    created_folders: tuple[Path, ...]


_held: dict[Path, _HeldLock] = {}
os.register_at_fork(after_in_child=_held.clear)  # a forked process does not own the locks of its parent


def lock_file(target: Path) -> Path:
    """Path of the lock file of an output path.

    Args:
        target: The output path; it need not exist.

    >>> lock_file(Path("runs/x")).as_posix()
    'runs/.x.lock'
    """
    return target.with_name(f".{target.name}.lock")


def lock(target: Path, wait: float = RETRY_SECONDS) -> None:
    """Lock an output path for this process until `release` or `release_all`; locking it twice is locking it once.

    Args:
        target: The output path; missing parent folders are created, and removed on release if they are still empty.
        wait: Seconds, at most, to wait for another process.

    Raises:
        StorageError: Another process holds the lock (named by its process id), or the folder cannot be written to.
    """
    path = _lock_key(target)
    if path in _held:
        return
    file = lock_file(path)
    created = _create_folders(path.parent)
    file_lock = FileLock(file, thread_local=False, on_acquired=_write_process_id)
    try:
        file_lock.acquire(timeout=wait, poll_interval=RETRY_SECONDS / 10)
    except OSError as error:
        _remove_empty(created)
        if isinstance(error, Timeout) and file.exists():  # without the file, the folder refused it until the timeout
            raise StorageError(
                f"Another run writes there{_owner(file)}.",
                where=str(target),
                fix="Wait for it, or name another folder.",
            ) from error
        raise _unwritable(path.parent) from error
    _held[path] = _HeldLock(file_lock, created)


def release(target: Path) -> None:
    """Release the lock of an output path; nothing happens where this process does not hold it.

    Args:
        target: The output path given to `lock`.
    """
    held = _held.pop(_lock_key(target), None)
    if held is not None:
        _release(held)


def release_all() -> None:
    """Release every lock of this process, for a command that ends early."""
    while _held:
        _release(_held.popitem()[1])


@contextmanager
def locked(target: Path, wait: float = RETRY_SECONDS) -> Iterator[None]:
    """Hold the lock of an output path for the length of a block.

    Args:
        target: The output path.
        wait: Seconds, at most, to wait for another process.

    Raises:
        StorageError: See `lock`.
    """
    lock(target, wait)
    try:
        yield
    finally:
        release(target)


def _lock_key(target: Path) -> Path:
    """One spelling for each path. The last part stays unresolved: a link is a path of its own."""
    return target.absolute().parent.resolve() / target.name


def _write_process_id(descriptor: int) -> None:
    with suppress(OSError):  # on a full disk the lock holds without its owner's process id
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())


def _owner(file: Path) -> str:
    try:
        process_id = file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
    return f" (process {process_id})" if process_id.isdecimal() else ""


def _release(held: _HeldLock) -> None:
    with suppress(OSError):
        Path(held.file_lock.lock_file).unlink()  # before the lock ends, so that no other process has taken it over
    held.file_lock.release()
    _remove_empty(held.created_folders)


def _create_folders(folder: Path) -> tuple[Path, ...]:
    missing = tuple(path for path in (folder, *folder.parents) if not path.exists())
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(next(path for path in folder.parents if path.exists())) from error
    return missing


def _remove_empty(folders: tuple[Path, ...]) -> None:
    for folder in folders:
        with suppress(OSError):  # it is in use by now
            folder.rmdir()


def _unwritable(folder: Path) -> StorageError:
    return StorageError("The folder cannot be written to.", where=str(folder), fix="Name another.")
