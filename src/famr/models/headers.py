"""What a weights file says of itself, read before any library is trusted with it: headers and lists of contents.

Every function takes bytes or a path and raises `ValueError` with the reason; none of them allocates what a file
merely claims to hold.
"""

from __future__ import annotations

import json
import math
import os
import zipfile
from pathlib import Path, PurePosixPath
from typing import Any

LARGEST_HEADER = 100 << 20
"""Bytes; safetensors' own limit."""
LARGEST_RATIO = 100
"""How much larger than its file the content of an archive may be: weights hardly compress, bombs do."""
MOST_MEMBERS = 100_000
LFS_POINTER = b"version https://git-lfs"


def is_lfs_pointer(path: Path) -> bool:
    """Whether Git LFS has left its note in the place of the file."""
    with path.open("rb") as file:
        return file.read(len(LFS_POINTER)) == LFS_POINTER


def check_safetensors(path: Path) -> None:
    """Refuse a header that safetensors would read in one way and another reader in another."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(LARGEST_HEADER, size - 8):
            raise ValueError("its header is longer than the file or than allowed")
        parse_header(file.read(length))


def parse_header(content: bytes) -> dict[str, Any]:
    """The JSON of a safetensors header, no name twice.

    >>> parse_header(b'{"a": {}}')
    {'a': {}}
    >>> parse_header(b'{"a": {}, "a": {}}')
    Traceback (most recent call last):
    ValueError: its header names 'a' twice
    """
    try:
        header = json.loads(content.decode("utf-8"), object_pairs_hook=_each_once)
    except RecursionError as error:
        raise ValueError("its header is nested too deeply") from error
    if not isinstance(header, dict):
        raise ValueError("its header is no JSON object")  # noqa: TRY004  # the file is wrong, not the call
    return header


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"its header names {name!r} twice")
        found[name] = value
    return found


def check_archive(path: Path) -> None:
    """Refuse an archive, such as a `.pth` is, that would unpack to far more than it is, or to another place."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError, UnicodeDecodeError, OverflowError) as error:
        raise ValueError("it is no archive, or a damaged one") from error
    if len(members) > MOST_MEMBERS:
        raise ValueError(f"it holds {len(members):,} entries, more than {MOST_MEMBERS:,}")
    for member in members:
        place = PurePosixPath(member.filename.replace("\\", "/"))
        if place.is_absolute() or ".." in place.parts:
            raise ValueError(f"an entry of it leads out of the archive: {member.filename!r}")
    claimed, held = sum(member.file_size for member in members), path.stat().st_size
    if claimed > LARGEST_RATIO * max(held, 1):
        raise ValueError(f"it is {held:,} bytes and would unpack to {claimed:,}: a bomb")
    if claimed > memory():
        raise ValueError(f"it would unpack to {claimed:,} bytes, more than this machine's memory")


def memory() -> float:
    """Bytes of memory of this machine; without bound where nobody says."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return math.inf
