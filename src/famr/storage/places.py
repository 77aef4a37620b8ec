"""Where model and data lay, written down so that no record names a machine, a user or a folder above the project.

A path becomes `{run}/../data`, from the run folder; one that has nothing in common with it but the root or the
folder of all users becomes `{elsewhere}/data`: its last name, which must be given again when it is needed.

>>> recorded("folder:/projects/faces/data", Path("/projects/faces/runs/no-x"))
'folder:{run}/../../data'
>>> found("folder:{run}/../../data", Path("/projects/faces/runs/no-x"))
'folder:/projects/faces/data'
>>> found("{elsewhere}/data", Path("/projects/faces/runs/no-x")) is None
True
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

BESIDE = "{run}/"
ELSEWHERE = "{elsewhere}/"
PLACES = {"original": ("model", "weights"), "data": ("spec", "root", "style_target")}
"""The fields of a run.json that may hold a path."""
PATH_KINDS = ("folder", "parquet")


def recorded(given: str | None, run: Path) -> str | None:
    """What a record says of a place; names that are no paths, such as `digits` or `timm:NAME`, stay as they are."""
    if given is None:
        return None
    kind, colon, place = _in_two(given)
    if not place or not (Path(place).is_absolute() or kind in PATH_KINDS or Path(place).exists()):
        return given
    true, here = Path(place).resolve(), run.resolve()
    common = Path(os.path.commonpath([true, here]))
    if common != Path.home() and Path.home().is_relative_to(common):
        return f"{kind}{colon}{ELSEWHERE}{true.name}"
    return f"{kind}{colon}{BESIDE}{Path(os.path.relpath(true, here)).as_posix()}"


def found(stored: str | None, run: Path) -> str | None:
    """The inverse of `recorded`; None for a place that the record does not tell."""
    if stored is None:
        return None
    kind, colon, place = _in_two(stored)
    if place.startswith(ELSEWHERE):
        return None
    if place.startswith(BESIDE):
        return f"{kind}{colon}{Path(os.path.normpath(run.resolve() / place.removeprefix(BESIDE)))}"
    return stored


def with_recorded_places(record: Mapping[str, Any], run: Path) -> dict[str, Any]:
    """A run.json as it is written."""
    return _each_place(record, run, recorded)


def with_found_places(record: Mapping[str, Any], run: Path) -> dict[str, Any]:
    """A run.json as it is used."""
    return _each_place(record, run, found)


def _each_place(record: Mapping[str, Any], run: Path, change: Callable[[str, Path], str | None]) -> dict[str, Any]:
    changed = dict(record)
    for part, names in PLACES.items():
        facts = record.get(part)
        if isinstance(facts, Mapping):
            told = {name: change(facts[name], run) for name in names if isinstance(facts.get(name), str)}
            if part == "original":  # the name that is left tells the user what to look for
                told = {name: place or facts[name] for name, place in told.items()}
            changed[part] = {**facts, **told}
    return changed


def _in_two(text: str) -> tuple[str, str, str]:
    """Kind and place of `kind:place`; a bare path has no kind, even where it holds a colon."""
    kind, colon, place = text.partition(":")
    return (kind, colon, place) if colon and kind.isidentifier() else ("", "", text)
