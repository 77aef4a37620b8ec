"""How far a reader walks to follow one request: files of famr whose functions run, and switches between files per step.

    python -m benchmarks.walk FOLDER

FOLDER holds a run folder `original` that was trained on digits. The whole command `famr forget --class 3` is followed
for the files; the steps of `famr.forget` for the switches, between one step's event and the next (median).
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import statistics
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

PACKAGE = "/famr/"


class Walk:
    """The files of famr in which functions were called, in order."""

    def __init__(self) -> None:
        self.files: list[str] = []

    def __call__(self, frame: FrameType, event: str, _argument: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and f"/src{PACKAGE}" in name and frame.f_code.co_name != "<module>":
            self.files.append(name.rpartition(f"/src{PACKAGE}")[2])

    def followed(self, work: Callable[[], object]) -> None:
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            work()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)


def switches(files: list[str]) -> int:
    """How often the next file is another one.

    >>> switches(["a", "a", "b", "a"])
    2
    """
    return sum(one != other for one, other in itertools.pairwise(files))


def command_walk(model: Path) -> dict[str, Any]:
    """The files behind `famr forget --class 3`."""
    from famr.cli.main import main

    walk = Walk()
    with tempfile.TemporaryDirectory() as folder:
        asked = ["--model", str(model), "--data", "digits", "--class", "3", "--device", "cpu", "--quiet"]
        sys.argv = ["famr", "forget", *asked, "--no-gates", "--strength", "1", "--output-dir", f"{folder}/run"]
        with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
            walk.followed(main)
    return {"files": len(set(walk.files)), "names": sorted(set(walk.files))}


def step_walk(model: Path) -> dict[str, Any]:
    """What is walked between one step and the next."""
    import famr

    walk = Walk()
    steps: list[list[str]] = []

    def on_event(event: object) -> None:
        if type(event).__name__ == "Step":
            steps.append(list(walk.files))
        walk.files.clear()

    splits = famr.split(famr.open_data("digits"), famr.Request(classes=["3"]))
    method = famr.FAMR(strength=1.0, batch_size=16, epochs=2)
    monitor = famr.Monitor(on_event=on_event)
    walk.followed(lambda: famr.forget(famr.load_model(str(model)), splits, method, device="cpu", monitor=monitor))
    inside = steps[2:9]  # of the first epoch, past its beginning
    return {
        "switches": statistics.median(map(switches, inside)),
        "files": statistics.median(len(set(files)) for files in inside),
        "names": sorted({name for files in inside for name in files}),
    }


if __name__ == "__main__":
    model = Path(sys.argv[1]) / "original"
    print(json.dumps({"a step": step_walk(model), "famr forget --class 3": command_walk(model)}, indent=1))
