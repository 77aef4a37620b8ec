"""SHA-256 of files, and COMPLETE.json: the list of them that is written last into a finished folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from famr.errors import CheckpointError

COMPLETE = "COMPLETE.json"


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def folder_digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below a folder, by its path in it."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not _is_seal(path, folder))
    return {path.relative_to(folder).as_posix(): file_digest(path) for path in files}


def _is_seal(path: Path, folder: Path) -> bool:
    """COMPLETE.json, or what is about to become it."""
    return path.parent == folder and path.name.lstrip(".").startswith(COMPLETE)


def seal(folder: Path) -> str:
    """What COMPLETE.json says of a folder as it now is."""
    return json.dumps({"algorithm": "sha256", "files": folder_digests(folder)}, indent=2) + "\n"


def seal_without(folder: Path, names: Iterable[str]) -> str | None:
    """A seal that no longer speaks of these files; None where it does not speak of them, or where there is none."""
    if not (folder / COMPLETE).is_file():
        return None
    sealed, leaving = _read_seal(folder / COMPLETE), set(names)
    if not leaving & set(sealed):
        return None
    kept = {name: digest for name, digest in sealed.items() if name not in leaving}
    return json.dumps({"algorithm": "sha256", "files": kept}, indent=2) + "\n"


def write_complete(folder: Path) -> None:
    """Seal a folder: nothing may be added or changed after this unnoticed."""
    (folder / COMPLETE).write_text(seal(folder), encoding="utf-8")


def check_complete(folder: Path) -> None:
    """Compare a sealed folder with its seal; a folder that was never sealed passes."""
    seal = folder / COMPLETE
    if not seal.is_file():
        return
    for name, digest in _read_seal(seal).items():
        path = folder / name
        if path.is_symlink() or not path.is_file() or file_digest(path) != digest:
            raise CheckpointError(
                f"A file of the run {'was changed' if path.is_file() else 'is missing'} since it was finished.",
                where=str(path),
                fix="Restore the folder from a copy, or make the run again.",
            )


def _read_seal(seal: Path) -> dict[str, str]:
    """The sealed names with their digests; one that leads out of the folder is damage, too."""
    try:
        sealed = dict(json.loads(seal.read_text(encoding="utf-8"))["files"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise _damaged(seal) from error
    if not all(_inside(name) and isinstance(digest, str) for name, digest in sealed.items()):
        raise _damaged(seal)
    return sealed


def _damaged(seal: Path) -> CheckpointError:
    return CheckpointError("COMPLETE.json is damaged.", where=str(seal), fix="Restore the folder.")


def _inside(name: str) -> bool:
    path = PurePosixPath(name)
    return bool(name) and "\0" not in name and not path.is_absolute() and ".." not in path.parts
