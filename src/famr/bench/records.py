"""The folder of a bench: its settings, one file a cell, each written whole; what is there is never run again.

bench.json                      settings that every cell shares; methods, requests and seeds may be added later
cells/*.json  tuning/*.json     one run each, done or failed
originals/  references/         trained once: weights, and answers of retrained models; those of another bench with the
                                same data, start and training may be put into a new folder, and are not trained again
results.json  results.md  results.html
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from famr.bench.contenders import file_stem
from famr.errors import RequestError, StorageError
from famr.runs.folder import atomic_file
from famr.storage.digests import COMPLETE

Part = Literal["cells", "tuning"]
TRAINED = ("originals", "references")


class Key(NamedTuple):
    """Which cell: a method (or its trial), a task by its label, a seed."""

    method: str
    task: str
    seed: int
    trial: int | None = None


def write_whole(file: Path, text: str) -> None:
    """A text file, whole or not at all."""
    with atomic_file(file) as staging:
        staging.write_text(text, encoding="utf-8")


def as_json(content: Mapping[str, Any]) -> str:
    """Readable JSON; NaN is an error."""
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


class Records:
    """What a bench has found so far, on disk."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """Open a new or an interrupted bench; one with other settings is refused."""
        self.folder = folder
        here = folder.resolve()
        if sealed := next((place for place in (here, *here.parents) if (place / COMPLETE).is_file()), None):
            raise RequestError("The output folder lies inside a finished run.", where=str(sealed), fix="Name another.")
        self.content: dict[str, Any] = {"settings": dict(settings), "methods": {}, "tasks": {}, "planned": []}
        file = folder / "bench.json"
        if file.exists():
            kept = read_record(file)
            before, now = kept.get("settings", {}), json.loads(json.dumps(settings))
            if other := sorted(name for name in {*before, *now} if before.get(name) != now.get(name)):
                raise RequestError(
                    f"The folder holds a bench with other settings: {', '.join(other)}.",
                    where=str(folder),
                    fix="Name another folder, or repeat the settings to go on with this one.",
                )
            self.content = kept
        elif folder.exists() and (not folder.is_dir() or any(part.name not in TRAINED for part in folder.iterdir())):
            raise RequestError("The output folder holds something else.", where=str(folder), fix="Name another folder.")

    @classmethod
    def reopened(cls, folder: Path) -> Records:
        """A bench as it is, to be read."""
        return cls(folder, read_record(folder / "bench.json").get("settings", {}))

    def plan(
        self, methods: Mapping[str, Any], tasks: Mapping[str, Any], keys: list[Key], not_served: Mapping[str, str]
    ) -> None:
        """Add to what is to be run, not yet on disk; the same name for something else is refused."""
        for part, added in (("methods", methods), ("tasks", tasks)):
            kept = self.content[part]
            for name, facts in json.loads(json.dumps(added)).items():
                if kept.setdefault(name, facts) != facts:
                    raise RequestError(
                        f"The folder holds other numbers for {name!r}.",
                        where=str(self.folder),
                        fix="Name another folder; what is there was run with the earlier numbers.",
                    )
        there = {tuple(key) for key in self.content["planned"]}
        self.content["planned"] += [list(key[:3]) for key in keys if tuple(key[:3]) not in there]
        self.content.setdefault("not_served", {}).update(not_served)

    def write(self) -> None:
        """Write down the settings and what is to be run."""
        write_whole(self.folder / "bench.json", as_json(self.content))

    def require_written(self) -> None:
        """An error where the folder is not the one that `write` wrote to: another machine's, perhaps."""
        if "bench.json" not in {file.name for file in self.folder.glob("*")}:
            raise StorageError(
                "The processes of this run do not see the same folder.",
                where=str(self.folder),
                fix="Name a folder that all machines share.",
            )

    def get(self, part: Part, key: Key) -> dict[str, Any] | None:
        """A finished or failed cell; None where there is none."""
        file = self._file(part, key)
        return read_record(file) if file.is_file() else None

    def keep(self, part: Part, key: Key, cell: Mapping[str, Any]) -> None:
        """Write a cell at once."""
        write_whole(self._file(part, key), as_json(cell))

    def all(self, part: Part) -> list[dict[str, Any]]:
        """Every cell that is there, by the name of its file."""
        return [read_record(file) for file in sorted((self.folder / part).glob("*.json"))]

    def _file(self, part: Part, key: Key) -> Path:
        names = [name for name in key if name is not None]
        return self.folder / part / f"{file_stem(*names)}.json"


def results(records: Records) -> dict[str, Any]:
    """All that a folder holds, as one object: planned cells in their order, a missing one as a key alone."""
    cells = []
    for method, task, seed in records.content["planned"]:
        key = Key(method, task, seed)
        cells.append(records.get("cells", key) or {"method": method, "task": task, "seed": seed, "missing": True})
    return {"benchmark": "methods", **records.content, "tuning": records.all("tuning"), "cells": cells}


def read_record(file: Path) -> dict[str, Any]:
    """A file of the bench; one that is damaged is an error."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StorageError(
            "A record of the bench is damaged.", where=str(file), fix="Delete it to run it again."
        ) from error
    if not isinstance(content, dict):
        raise StorageError("A record of the bench is damaged.", where=str(file), fix="Delete it to run it again.")
    return content
