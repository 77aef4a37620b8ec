"""Output that appears whole or not at all: made beside its place, synced to the disk, renamed once."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from famr.errors import RequestError, StorageError
from famr.storage.claims import claim, release
from famr.storage.digests import COMPLETE, write_complete
from famr.storage.litter import sweep_file, sweep_folder
from famr.storage.space import require_space, size_of_weights


def check_output(target: Path, overwrite: bool, inputs: Iterable[str | Path | None] = ()) -> None:
    """Refuse a place that cannot be written to, or that holds what is read, before any work is done.

    A place that is accepted stays claimed until it is written or the command ends.
    """
    here = target.resolve()
    inputs = list(inputs)
    for given in inputs:
        source = Path(str(given).rpartition(":")[2]) if given else None
        if source is not None and source.exists() and source.resolve().is_relative_to(here):
            raise RequestError(
                "The output folder is, or holds, an input of this run.", where=str(source), fix="Name another folder."
            )
    if sealed := next((folder for folder in here.parents if (folder / COMPLETE).is_file()), None):
        raise RequestError(
            "The output folder lies inside a finished run, which may not change.",
            where=str(sealed),
            fix="Name a folder outside.",
        )
    if target.is_symlink():
        raise RequestError("The output folder is a link.", where=str(target), fix="Name the folder itself.")
    claim(target)
    try:
        sweep_folder(target)
        _require_free_name(target, overwrite)
        require_space(target, size_of_weights(inputs))
    except BaseException:
        release(target)
        raise


def _require_free_name(target: Path, overwrite: bool) -> None:
    if target.exists() and not overwrite:
        raise RequestError(
            "The output folder exists already.", where=str(target), fix="Name another, or say --overwrite."
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
    """A temporary folder beside `target` that becomes `target` when the block ends well, and vanishes otherwise."""
    check_output(target, overwrite)
    staging = None
    try:
        staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent))
        yield staging
        write_complete(staging)
        _open_to_umask(staging)
        _sync(staging)
        if target.exists():
            discarded = staging.with_suffix(".old")
            target.rename(discarded)
            try:
                staging.rename(target)
            except OSError:
                discarded.rename(target)
                raise
            shutil.rmtree(discarded)
        else:
            staging.rename(target)
        _sync_folder(target.parent)
    except (OSError, SafetensorError) as error:
        raise _storage_error(error, target) from error
    finally:
        if staging is not None:
            shutil.rmtree(staging, ignore_errors=True)
        release(target)


@contextmanager
def atomic_file(target: Path) -> Iterator[Path]:
    """A temporary file beside `target` that becomes `target` when the block ends well, and vanishes otherwise."""
    staging = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        sweep_file(target)
        staging.unlink(missing_ok=True)
        os.close(os.open(staging, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666))  # ours, and no link
        yield staging
        with staging.open("rb") as file:
            os.fsync(file.fileno())
        staging.replace(target)
        _sync_folder(target.parent)
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


def _open_to_umask(folder: Path) -> None:
    """mkdtemp makes private folders; give this one the permissions of any other."""
    umask = os.umask(0)
    os.umask(umask)
    folder.chmod(0o777 & ~umask)


def _sync(folder: Path) -> None:
    for path in (*folder.rglob("*"), folder):
        if path.is_dir():
            _sync_folder(path)
        else:
            with path.open("rb") as file:
                os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
