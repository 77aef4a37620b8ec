"""What a process that was killed has left beside its output: removed, or put back, by the next one."""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

from famr.storage.digests import COMPLETE


def sweep_folder(target: Path) -> None:
    """Clear what dead runs have left for this place; the caller holds the claim on it, so that none of it lives.

    A run that was killed between moving the old folder away and moving the new one in gets its old folder back.
    """
    for old in _left_beside(target, r"[a-z0-9_]{8}\.old"):
        if not target.exists() and (old / COMPLETE).is_file():
            old.rename(target)
        else:
            _remove(old)
    for staging in _left_beside(target, r"[a-z0-9_]{8}\.tmp"):
        _remove(staging)


def sweep_file(target: Path) -> None:
    """Clear the half-written files of dead processes for this file."""
    for staging in _left_beside(target, r"[0-9]+\.tmp"):
        if _is_dead(staging):
            _remove(staging)


def sweep_inside(run: Path) -> None:
    """Clear the half-written files of dead processes in a run folder, whichever file they were to become."""
    for staging in run.rglob(".*.tmp"):
        if re.fullmatch(r"\..+\.[0-9]+\.tmp", staging.name) and _is_dead(staging):
            _remove(staging)


def _left_beside(target: Path, ending: str) -> list[Path]:
    pattern = re.compile(rf"\.{re.escape(target.name)}\.{ending}")
    if not target.parent.is_dir():
        return []
    return sorted(path for path in target.parent.iterdir() if pattern.fullmatch(path.name))


def _is_dead(staging: Path) -> bool:
    """Whether the process that a half-written file is named after is gone."""
    pid = int(staging.name.split(".")[-2])
    return pid != os.getpid() and not _alive(pid)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
