"""Is there room for the output? Asked before the work, and again before the writing."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from famr.errors import StorageError

SPARE = 2
"""Twice the weights: the records, and what a library writes beside a file before it renames it."""
SMALLEST = 1 << 20
WEIGHTS = (".safetensors", ".pth", ".pt", ".bin", ".ckpt")


def require_space(target: Path, weights: int) -> None:
    """Refuse a file system without room for twice these bytes of weights."""
    needed = SPARE * weights + SMALLEST
    folder = next(place for place in target.absolute().parents if place.exists())
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise StorageError(
            f"There is no room for the output: {_megabytes(needed)} needed, {_megabytes(free)} free.",
            where=str(target),
            fix="Free space or choose another folder; nothing was begun.",
        )


def size_of_weights(inputs: Iterable[str | Path | None]) -> int:
    """The bytes of the largest weights among the inputs of a run; 0 where none of them is a local file."""
    places = [Path(str(given).rpartition(":")[2]) for given in inputs if given]
    folders = [sum(file.stat().st_size for file in place.glob("*.safetensors")) for place in places]
    files = [place.stat().st_size for place in places if place.suffix in WEIGHTS and place.is_file()]
    return max([*folders, *files], default=0)


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"
