"""Paths in a run.json, written relative to the run folder, so that no record names a machine or a user.

A path becomes `{run}/../data`. One that shares nothing with the run folder but the root, or the folder of all users,
becomes `{elsewhere}/data`: only its last name stays, and the user gives the path again when it is needed.

>>> to_portable("folder:/projects/faces/data", Path("/projects/faces/runs/no-x"))
'folder:{run}/../../data'
>>> from_portable("folder:{run}/../../data", Path("/projects/faces/runs/no-x"))
'folder:/projects/faces/data'
>>> from_portable("{elsewhere}/data", Path("/projects/faces/runs/no-x")) is None
True
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

RUN = "{run}/"
ELSEWHERE = "{elsewhere}/"
PATH_FIELDS = {
    "original": ("model", "weights"),
    "start": ("model", "weights"),
    "data": ("spec", "root", "style_target"),
}
"""The fields of a run.json that may hold a path."""
PATH_KINDS = ("folder", "parquet")
"""Kinds of a `kind:path` whose second part is always a path."""


def to_portable(spec: str | None, run: Path) -> str | None:
    """A path as it is written to a run.json.

    Args:
        spec: A path, or `kind:path`; names that are no paths, such as `digits` or `timm:NAME`, stay as they are.
        run: The run folder; it need not exist.

    Returns:
        The portable form; None for None.
    """
    if spec is None:
        return None
    kind, colon, path = _split_kind(spec)
    if not path or not (Path(path).is_absolute() or kind in PATH_KINDS or Path(path).exists()):
        return spec
    absolute, run = Path(path).resolve(), run.resolve()
    common = Path(os.path.commonpath([absolute, run]))
    if common != Path.home() and Path.home().is_relative_to(common):
        return f"{kind}{colon}{ELSEWHERE}{absolute.name}"
    return f"{kind}{colon}{RUN}{Path(os.path.relpath(absolute, run)).as_posix()}"


def from_portable(stored: str | None, run: Path) -> str | None:
    """The inverse of `to_portable`, for a run folder that may have moved since.

    Args:
        stored: A field of a run.json.
        run: The run folder where it is now.

    Returns:
        An absolute path; a name that is no path as it was; None for a path that the record does not contain.
    """
    if stored is None:
        return None
    kind, colon, path = _split_kind(stored)
    if path.startswith(ELSEWHERE):
        return None
    if path.startswith(RUN):
        return f"{kind}{colon}{Path(os.path.normpath(run.resolve() / path.removeprefix(RUN)))}"
    return stored


def with_portable_paths(record: Mapping[str, Any], run: Path) -> dict[str, Any]:
    """A run.json as it is written: `to_portable` applied to its path fields.

    Args:
        record: Content of the run.json, with paths of this machine.
        run: The run folder.
    """
    return _map_paths(record, run, to_portable)


def with_local_paths(record: Mapping[str, Any], run: Path) -> dict[str, Any]:
    """A run.json as it is used: `from_portable` applied to its path fields.

    Args:
        record: Content of the run.json.
        run: The run folder where it is now.
    """
    return _map_paths(record, run, from_portable)


def _map_paths(record: Mapping[str, Any], run: Path, change: Callable[[str, Path], str | None]) -> dict[str, Any]:
    changed = dict(record)
    for part, names in PATH_FIELDS.items():
        facts = record.get(part)
        if isinstance(facts, Mapping):
            paths = {name: change(facts[name], run) for name in names if isinstance(facts.get(name), str)}
            if part == "original":  # its last name tells the user which model to look for
                paths = {name: path or facts[name] for name, path in paths.items()}
            changed[part] = {**facts, **paths}
    return changed


def _split_kind(text: str) -> tuple[str, str, str]:
    """Kind, colon and path of `kind:path`; a bare path has no kind, even where it contains a colon."""
    kind, colon, path = text.partition(":")
    return (kind, colon, path) if colon and kind.isidentifier() else ("", "", text)
