"""Free disk space: checked before the work, and again before the output is written."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from famr.errors import StorageError

SPACE_FACTOR = 2
"""Twice the weights: room for the records, and for the copy that a library writes before it renames it."""
MINIMUM_BYTES = 1 << 20
WEIGHT_SUFFIXES = (".safetensors", ".pth", ".pt", ".bin", ".ckpt")


def require_space(target: Path, weights: int) -> None:
    """Refuse a file system with less free space than twice the weights and 1 MiB.

    Args:
        target: The output path; it need not exist.
        weights: Size of the weights to be written, in bytes.

    Raises:
        StorageError: There is less free space.
    """
    needed = SPACE_FACTOR * weights + MINIMUM_BYTES
    folder = next(parent for parent in target.absolute().parents if parent.exists())
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise StorageError(
            f"There is no room for the output: {_megabytes(needed)} needed, {_megabytes(free)} free.",
            where=str(target),
            fix="Free space or choose another folder; nothing was begun.",
        )


def size_of_weights(inputs: Iterable[str | Path | None]) -> int:
    """Bytes of the largest weights among the inputs of a run.

    Args:
        inputs: Models and data, as paths or `kind:path`.

    Returns:
        0 where none of them is a local file or a folder of safetensors files.
    """
    paths = [Path(str(spec).rpartition(":")[2]) for spec in inputs if spec]
    folders = [sum(file.stat().st_size for file in path.glob("*.safetensors")) for path in paths]
    files = [path.stat().st_size for path in paths if path.suffix in WEIGHT_SUFFIXES and path.is_file()]
    return max([*folders, *files], default=0)


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"
