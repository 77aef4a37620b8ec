"""Flush files and folders to the disk, so that a finished output survives a power failure."""

from __future__ import annotations

import os
from pathlib import Path


def fsync_path(path: Path) -> None:
    """Flush the content of a file, or the names in a folder (what a rename changes), to the disk.

    Args:
        path: A file or a folder.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_tree(folder: Path) -> None:
    """Flush every file and folder below a folder, then the folder itself.

    Args:
        folder: Root of the tree.
    """
    for path in (*folder.rglob("*"), folder):
        fsync_path(path)
