"""SHA-256 of bytes, values, files and folders; and COMPLETE.json, the seal written last into a finished folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from famr.errors import CheckpointError

COMPLETE = "COMPLETE.json"
"""The seal of a finished folder: every file in it with its SHA-256."""


def bytes_digest(content: bytes) -> str:
    """SHA-256 of bytes, as 64 hexadecimal digits.

    Args:
        content: The bytes.

    >>> bytes_digest(b"")[:8]
    'e3b0c442'
    """
    return hashlib.sha256(content).hexdigest()


def json_digest(value: object) -> str:
    """SHA-256 of a plain value as JSON with sorted keys, so that the order of a mapping does not matter.

    Args:
        value: What JSON can hold; anything else in it counts as its `str`.

    >>> json_digest({"a": 1, "b": 2}) == json_digest({"b": 2, "a": 1})
    True
    """
    return bytes_digest(json.dumps(value, sort_keys=True, default=str).encode())


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes.

    Args:
        path: The file.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def folder_digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below a folder but its seal.

    Args:
        folder: Root of the tree.

    Returns:
        Digests by path relative to `folder`, with forward slashes.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not _is_seal(path, folder))
    return {path.relative_to(folder).as_posix(): file_digest(path) for path in files}


def _is_seal(path: Path, folder: Path) -> bool:
    """COMPLETE.json, or the temporary file that becomes it."""
    return path.parent == folder and path.name.lstrip(".").startswith(COMPLETE)


def seal(folder: Path) -> str:
    """Content of COMPLETE.json for a folder as it is now.

    Args:
        folder: The folder to seal.
    """
    return _seal_text(folder_digests(folder))


def seal_without(folder: Path, names: Iterable[str]) -> str | None:
    """Content of COMPLETE.json without some files, so that they can be replaced while the seal stays valid.

    Args:
        folder: A folder, sealed or not.
        names: Paths relative to the folder.

    Returns:
        None where the folder is not sealed, or its seal lists none of the files.

    Raises:
        CheckpointError: The seal is damaged.
    """
    if not (folder / COMPLETE).is_file():
        return None
    sealed, removed = _read_seal(folder / COMPLETE), set(names)
    if not removed & set(sealed):
        return None
    return _seal_text({name: digest for name, digest in sealed.items() if name not in removed})


def write_complete(folder: Path) -> None:
    """Seal a folder: from here on, `check_complete` notices a changed or missing file.

    Args:
        folder: The finished folder.
    """
    (folder / COMPLETE).write_text(seal(folder), encoding="utf-8")


def check_complete(folder: Path) -> None:
    """Compare a sealed folder with its seal; a folder without a seal passes.

    Args:
        folder: The folder.

    Raises:
        CheckpointError: A sealed file is missing, changed or a link, or the seal is damaged.
    """
    seal_file = folder / COMPLETE
    if not seal_file.is_file():
        return
    for name, digest in _read_seal(seal_file).items():
        path = folder / name
        if path.is_symlink() or not path.is_file() or file_digest(path) != digest:
            raise CheckpointError(
                f"A file of the run {'was changed' if path.is_file() else 'is missing'} since it was finished.",
                where=str(path),
                fix="Restore the folder from a copy, or make the run again.",
            )


def _seal_text(digests: dict[str, str]) -> str:
    return json.dumps({"algorithm": "sha256", "files": digests}, indent=2) + "\n"


def _read_seal(seal: Path) -> dict[str, str]:
    """The sealed names with their digests; a name that leads out of the folder is damage, too."""
    try:
        sealed = dict(json.loads(seal.read_text(encoding="utf-8"))["files"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise _damaged(seal) from error
    if not all(_is_inside(name) and isinstance(digest, str) for name, digest in sealed.items()):
        raise _damaged(seal)
    return sealed


def _damaged(seal: Path) -> CheckpointError:
    return CheckpointError("COMPLETE.json is damaged.", where=str(seal), fix="Restore the folder.")


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return bool(name) and "\0" not in name and not path.is_absolute() and ".." not in path.parts
