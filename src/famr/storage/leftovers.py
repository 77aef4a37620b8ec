"""Temporary files and folders that a killed process left beside its output: removed, or restored, by the next one."""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

from famr.storage.digests import COMPLETE


def sweep_folder(target: Path) -> None:
    """Remove the temporary folders that dead processes left for an output folder.

    A process that was killed between moving the old folder away and moving the new one in gets its old folder back.

    Args:
        target: The output folder. The caller holds its lock, so no living process uses what is removed.
    """
    for old in _beside(target, r"[a-z0-9_]{8}\.old"):
        if not target.exists() and (old / COMPLETE).is_file():
            old.rename(target)
        else:
            _remove(old)
    for staging in _beside(target, r"[a-z0-9_]{8}\.tmp"):
        _remove(staging)


def sweep_file(target: Path) -> None:
    """Remove the half-written files that dead processes left for an output file.

    Args:
        target: The output file.
    """
    for staging in _beside(target, r"[0-9]+\.tmp"):
        if _is_writer_dead(staging):
            _remove(staging)


def sweep_inside(run: Path) -> None:
    """Remove the half-written files that dead processes left anywhere in a run folder.

    Args:
        run: The run folder.
    """
    for staging in run.rglob(".*.tmp"):
        if re.fullmatch(r"\..+\.[0-9]+\.tmp", staging.name) and _is_writer_dead(staging):
            _remove(staging)


def _beside(target: Path, ending: str) -> list[Path]:
    """Paths in the same folder named `.TARGET.` and an ending, a regular expression."""
    pattern = re.compile(rf"\.{re.escape(target.name)}\.{ending}")
    if not target.parent.is_dir():
        return []
    return sorted(path for path in target.parent.iterdir() if pattern.fullmatch(path.name))


def _is_writer_dead(staging: Path) -> bool:
    """Whether the process whose id the name of a half-written file holds is gone."""
    process_id = int(staging.name.split(".")[-2])
    return process_id != os.getpid() and not _is_alive(process_id)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def _is_alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
