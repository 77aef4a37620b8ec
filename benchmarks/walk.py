"""The files that one request runs through: files of famr with executed functions, and switches between files per step.

    python -m benchmarks.walk FOLDER

FOLDER holds a run folder `original` that was trained on digits. The files are those of the whole command
`famr forget --class 3`; the switches (median) are those between two `Step` events of `famr.forget`.
"""

from __future__ import annotations

import argparse
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

PACKAGE = "/src/famr/"


class Walk:
    """The files of famr in which functions were called, in order."""

    def __init__(self) -> None:
        self.files: list[str] = []

    def __call__(self, frame: FrameType, event: str, _argument: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and PACKAGE in name and frame.f_code.co_name != "<module>":
            self.files.append(name.rpartition(PACKAGE)[2])

    def profile(self, work: Callable[[], object]) -> None:
        """Record the calls of all threads while the work runs."""
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            work()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)


def switches(files: list[str]) -> int:
    """How often the next call is in another file.

    >>> switches(["a", "a", "b", "a"])
    2
    """
    return sum(one != other for one, other in itertools.pairwise(files))


def command_walk(model: Path) -> dict[str, Any]:
    """The files that `famr forget --class 3` runs through."""
    from famr.cli.main import main as famr_command

    walk = Walk()
    with tempfile.TemporaryDirectory() as folder:
        options = ["--model", str(model), "--data", "digits", "--class", "3", "--device", "cpu", "--quiet"]
        sys.argv = ["famr", "forget", *options, "--no-gates", "--strength", "1", "--output-dir", f"{folder}/run"]
        with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
            walk.profile(famr_command)
    return {"files": len(set(walk.files)), "names": sorted(set(walk.files))}


def step_walk(model: Path) -> dict[str, Any]:
    """The files between one step and the next."""
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
    walk.profile(lambda: famr.forget(famr.load_model(str(model)), splits, method, device="cpu", monitor=monitor))
    inside = steps[2:9]  # steps within the first epoch, after its first ones
    return {
        "switches": statistics.median(map(switches, inside)),
        "files": statistics.median(len(set(files)) for files in inside),
        "names": sorted({name for files in inside for name in files}),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    model = parser.parse_args().folder / "original"
    print(json.dumps({"a step": step_walk(model), "famr forget --class 3": command_walk(model)}, indent=1))


if __name__ == "__main__":
    main()
