"""Headers and lists of contents of weights files, checked before a library reads the files.

Every function takes bytes or a path and raises `ValueError` with the reason; none allocates what a file only claims to
hold.
"""

from __future__ import annotations

import json
import math
import os
import zipfile
from pathlib import Path, PurePosixPath
from typing import Any

LARGEST_HEADER = 100 << 20
"""Bytes; the limit of safetensors."""
LARGEST_RATIO = 100
"""Largest ratio of an archive's content to its size: weights hardly compress, decompression bombs do."""
MOST_MEMBERS = 100_000
LFS_POINTER = b"version https://git-lfs"


def is_lfs_pointer(path: Path) -> bool:
    """Whether a file is a pointer of Git LFS instead of the content.

    Args:
        path: Of the file.
    """
    with path.open("rb") as file:
        return file.read(len(LFS_POINTER)) == LFS_POINTER


def check_safetensors(path: Path) -> None:
    """Check the header of a safetensors file.

    Args:
        path: Of the file.

    Raises:
        ValueError: It is too long, is not a JSON object, or has a name twice, which readers treat differently.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(LARGEST_HEADER, size - 8):
            raise ValueError("its header is longer than the file or than allowed")
        parse_header(file.read(length))


def parse_header(content: bytes) -> dict[str, Any]:
    """The JSON object of a safetensors header.

    Args:
        content: The header, without its length.

    Raises:
        ValueError: It is not a JSON object, is nested too deeply, or has a name twice.

    >>> parse_header(b'{"a": {}}')
    {'a': {}}
    >>> parse_header(b'{"a": {}, "a": {}}')
    Traceback (most recent call last):
    ValueError: its header names 'a' twice
    """
    try:
        header = json.loads(content.decode("utf-8"), object_pairs_hook=_unique)
    except RecursionError as error:
        raise ValueError("its header is nested too deeply") from error
    if not isinstance(header, dict):
        raise ValueError("its header is no JSON object")  # noqa: TRY004  # the file is wrong, not the call
    return header


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in values:
            raise ValueError(f"its header names {name!r} twice")
        values[name] = value
    return values


def check_archive(path: Path) -> None:
    """Check a zip archive, such as a `.pth`, before it is unpacked.

    Args:
        path: Of the file.

    Raises:
        ValueError: It is no archive, is a decompression bomb, or has an entry outside of the archive.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError, UnicodeDecodeError, OverflowError) as error:
        raise ValueError("it is no archive, or a damaged one") from error
    if len(members) > MOST_MEMBERS:
        raise ValueError(f"it holds {len(members):,} entries, more than {MOST_MEMBERS:,}")
    for member in members:
        name = PurePosixPath(member.filename.replace("\\", "/"))
        if name.is_absolute() or ".." in name.parts:
            raise ValueError(f"an entry of it leads out of the archive: {member.filename!r}")
    claimed, actual = sum(member.file_size for member in members), path.stat().st_size
    if claimed > LARGEST_RATIO * max(actual, 1):
        raise ValueError(f"it is {actual:,} bytes and would unpack to {claimed:,}: a bomb")
    if claimed > _machine_memory():
        raise ValueError(f"it would unpack to {claimed:,} bytes, more than this machine's memory")


def _machine_memory() -> float:
    """Bytes of memory of this machine; infinite where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return math.inf
