"""The folder of a bench: its settings, and one file a cell, each written atomically. A cell that is there is not rerun.

bench.json                      settings that every cell shares; methods, requests and seeds may be added later
cells/*.json  tuning/*.json     one run each, finished or failed
limits/*.json                   what of a trial fits into the limit in seconds, measured once
originals/  references/         trained once: weights of originals, predictions of retrained models. Those of another
                                bench with the same data, start and training may be copied into a new folder
results.json  results.md  results.html
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from famr.bench.comparison import compare_methods
from famr.bench.methods import file_stem
from famr.errors import RequestError, StorageError
from famr.runs.folder import atomic_file
from famr.storage.digests import COMPLETE

Part = Literal["cells", "tuning", "limits"]
TRAINED = ("originals", "references")


class CellKey(NamedTuple):
    """Which cell.

    Attributes:
        method: Name of the method.
        task: Label of the task.
        seed: Of the original.
        trial: Number of the trial, for tuning and limits; else None. The task of a limit is a kind of request.
    """

    method: str
    task: str
    seed: int
    trial: int | None = None


def write_atomic(path: Path, text: str) -> None:
    """Write a text file, whole or not at all.

    Args:
        path: The file.
        text: Its content, written as UTF-8.
    """
    with atomic_file(path) as staging:
        staging.write_text(text, encoding="utf-8")


def json_text(content: Mapping[str, Any]) -> str:
    """Readable JSON.

    Args:
        content: Plain values.

    Raises:
        ValueError: A number is NaN or infinite.
    """
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


class ResultsFolder:
    """The cells of a bench on disk.

    Args:
        path: A folder that does not exist or is empty, one that holds trained models alone, or an interrupted bench.
        settings: What all its cells have in common.

    Raises:
        RequestError: The folder holds a bench with other settings, or something else.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self.path = path
        resolved = path.resolve()
        if sealed := next((folder for folder in (resolved, *resolved.parents) if (folder / COMPLETE).is_file()), None):
            raise RequestError("The output folder lies inside a finished run.", where=str(sealed), fix="Name another.")
        self.content: dict[str, Any] = {"settings": dict(settings), "methods": {}, "tasks": {}, "planned": []}
        file = path / "bench.json"
        if file.exists():
            stored = read_record(file)
            before, now = stored.get("settings", {}), json.loads(json.dumps(settings))
            if differing := sorted(name for name in {*before, *now} if before.get(name) != now.get(name)):
                raise RequestError(
                    f"The folder holds a bench with other settings: {', '.join(differing)}.",
                    where=str(path),
                    fix="Name another folder, or repeat the settings to resume this one.",
                )
            self.content = stored
        elif path.exists() and (not path.is_dir() or any(part.name not in TRAINED for part in path.iterdir())):
            raise RequestError("The output folder holds something else.", where=str(path), fix="Name another folder.")

    @classmethod
    def reopen(cls, path: Path) -> ResultsFolder:
        """Open a bench as it is, to read it.

        Args:
            path: Its folder.
        """
        return cls(path, read_record(path / "bench.json").get("settings", {}))

    def plan(
        self, methods: Mapping[str, Any], tasks: Mapping[str, Any], keys: list[CellKey], not_served: Mapping[str, str]
    ) -> None:
        """Add cells that are to be run; `save_plan` writes them down.

        Args:
            methods: Numbers of the methods, by name.
            tasks: Facts of the tasks, by label.
            keys: The cells.
            not_served: Why a method cannot serve a request, by pair.

        Raises:
            RequestError: A method or task has the name of another one in the folder.
        """
        for part, added in (("methods", methods), ("tasks", tasks)):
            stored = self.content[part]
            for name, facts in json.loads(json.dumps(added)).items():
                if stored.setdefault(name, facts) != facts:
                    raise RequestError(
                        f"The folder holds other numbers for {name!r}.",
                        where=str(self.path),
                        fix="Name another folder; the cells of this one were run with the earlier numbers.",
                    )
        planned = {tuple(key) for key in self.content["planned"]}
        self.content["planned"] += [list(key[:3]) for key in keys if tuple(key[:3]) not in planned]
        self.content.setdefault("not_served", {}).update(not_served)

    def save_plan(self) -> None:
        """Write bench.json."""
        write_atomic(self.path / "bench.json", json_text(self.content))

    def require_saved(self) -> None:
        """Check that this process sees the folder that `save_plan` wrote to.

        Raises:
            StorageError: It does not; perhaps the folder is on another machine.
        """
        if "bench.json" not in {file.name for file in self.path.glob("*")}:
            raise StorageError(
                "The processes of this run do not see the same folder.",
                where=str(self.path),
                fix="Name a folder that all machines share.",
            )

    def get(self, part: Part, key: CellKey) -> dict[str, Any] | None:
        """A finished or failed cell; None if it was not run.

        Args:
            part: Cells, tuning or limits.
            key: Which.
        """
        file = self._file(part, key)
        return read_record(file) if file.is_file() else None

    def save_cell(self, part: Part, key: CellKey, cell: Mapping[str, Any]) -> None:
        """Write a cell.

        Args:
            part: Cells, tuning or limits.
            key: Which.
            cell: Plain values.
        """
        write_atomic(self._file(part, key), json_text(cell))

    def results(self) -> dict[str, Any]:
        """Everything as one object, with the comparison of methods; planned cells in their order, one that was not run
        as its key and `missing`."""
        cells = []
        for method, task, seed in self.content["planned"]:
            missing = {"method": method, "task": task, "seed": seed, "missing": True}
            cells.append(self.get("cells", CellKey(method, task, seed)) or missing)
        tuning, limits = (
            [read_record(file) for file in sorted((self.path / part).glob("*.json"))] for part in ("tuning", "limits")
        )
        content = {"benchmark": "methods", **self.content, "tuning": tuning, "limits": limits, "cells": cells}
        return {**content, "comparisons": compare_methods(content)}

    def _file(self, part: Part, key: CellKey) -> Path:
        names = [name for name in key if name is not None]
        return self.path / part / f"{file_stem(*names)}.json"


def read_record(path: Path) -> dict[str, Any]:
    """Read a JSON file of the bench.

    Args:
        path: The file.

    Raises:
        StorageError: It is damaged.
    """
    damaged = StorageError("A record of the bench is damaged.", where=str(path), fix="Delete it to run it again.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise damaged from error
    if not isinstance(content, dict):
        raise damaged
    return content
