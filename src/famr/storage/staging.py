"""Output that appears whole or not at all: written beside its path, synced to the disk, renamed once."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from famr.errors import RequestError, StorageError
from famr.storage.digests import COMPLETE, write_complete
from famr.storage.fsync import fsync_path, fsync_tree
from famr.storage.leftovers import sweep_file, sweep_folder
from famr.storage.locks import lock, release
from famr.storage.space import require_space, size_of_weights


def check_output(target: Path, overwrite: bool, inputs: Iterable[str | Path | None] = ()) -> None:
    """Refuse, before any work, an output folder that cannot be written to or that holds an input of the run.

    A folder that is accepted stays locked until it is written or the command ends.

    Args:
        target: The output folder.
        overwrite: Whether a folder that famr wrote may be replaced.
        inputs: Models and data that the run reads, as paths or `kind:path`.

    Raises:
        RequestError: The folder exists, is a link, holds an input, or lies inside a finished run.
        StorageError: Another process writes there, the folder cannot be written to, or the disk is too full.
    """
    absolute = target.resolve()
    inputs = list(inputs)
    for spec in inputs:
        source = Path(str(spec).rpartition(":")[2]) if spec else None
        if source is not None and source.exists() and source.resolve().is_relative_to(absolute):
            raise RequestError(
                "The output folder is, or holds, an input of this run.", where=str(source), fix="Name another folder."
            )
    if sealed := next((folder for folder in absolute.parents if (folder / COMPLETE).is_file()), None):
        raise RequestError(
            "The output folder lies inside a finished run, which may not change.",
            where=str(sealed),
            fix="Name a folder outside.",
        )
    if target.is_symlink():
        raise RequestError("The output folder is a link.", where=str(target), fix="Name the folder itself.")
    lock(target)
    try:
        sweep_folder(target)
        _require_replaceable(target, overwrite)
        require_space(target, size_of_weights(inputs))
    except BaseException:
        release(target)
        raise


def _require_replaceable(target: Path, overwrite: bool) -> None:
    if target.exists() and not overwrite:
        raise RequestError(
            "The output folder exists already.", where=str(target), fix="Name another, or give --overwrite."
        )
    if target.exists() and not (target / COMPLETE).is_file() and not _is_empty_folder(target):
        raise RequestError(
            "The output folder holds something that famr did not write; it is not overwritten.",
            where=str(target),
            fix="Name another folder.",
        )


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


@contextmanager
def atomic_folder(target: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """A temporary folder beside `target` that becomes `target`, sealed, when the block ends without an error.

    Args:
        target: The output folder; locked for the length of the block.
        overwrite: Whether a folder that famr wrote may be replaced.

    Yields:
        The temporary folder; it is removed where the block raises.

    Raises:
        RequestError: See `check_output`.
        StorageError: The output could not be written; an old folder at `target` stays whole.
    """
    check_output(target, overwrite)
    staging = None
    try:
        staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent))
        yield staging
        write_complete(staging)
        _set_umask_permissions(staging)
        fsync_tree(staging)
        if target.exists():
            old = staging.with_suffix(".old")
            target.rename(old)
            try:
                staging.rename(target)
            except OSError:
                old.rename(target)
                raise
            shutil.rmtree(old)
        else:
            staging.rename(target)
        fsync_path(target.parent)
    except (OSError, SafetensorError) as error:
        raise _storage_error(error, target) from error
    finally:
        if staging is not None:
            shutil.rmtree(staging, ignore_errors=True)
        release(target)


@contextmanager
def atomic_file(target: Path) -> Iterator[Path]:
    """A temporary file beside `target` that becomes `target` when the block ends without an error.

    Args:
        target: The output file; an old one is replaced, a link at its path is replaced and not followed.

    Yields:
        The temporary file, empty; it is removed where the block raises.

    Raises:
        StorageError: The file could not be written; an old file at `target` stays whole.
    """
    staging = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        sweep_file(target)
        staging.unlink(missing_ok=True)
        os.close(os.open(staging, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666))  # new, and not a link
        yield staging
        fsync_path(staging)
        staging.replace(target)
        fsync_path(target.parent)
    except (OSError, SafetensorError) as error:
        raise _storage_error(error, target) from error
    finally:
        staging.unlink(missing_ok=True)


def _storage_error(error: Exception, target: Path) -> StorageError:
    return StorageError(
        f"The output could not be written: {getattr(error, 'strerror', None) or error}.",
        where=str(target),
        fix="Free space or choose another folder; nothing was left behind.",
    )


def _set_umask_permissions(folder: Path) -> None:
    """mkdtemp makes private folders; give this one the permissions of any other."""
    umask = os.umask(0)
    os.umask(umask)
    folder.chmod(0o777 & ~umask)
