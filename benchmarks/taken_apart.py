"""A famr command in this process, and where its time goes: what each part takes itself, without the parts inside it.

    python -m benchmarks.taken_apart BEGUN FILE forget --data … --output-dir …

BEGUN is the time at which the process was started (`time.time()`), FILE gets seconds by part as JSON. Functions are
wrapped, the device is waited for at both ends of each; that and the rest of a command are told as parts as well.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import inspect
import json
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

LIBRARIES = "Python and its libraries"
REST = "the rest"
PARTS = {
    "the model": ["famr.models.loading.load_model", "famr.engine.at_work.to_work"],
    "the data": ["famr.cli.commands.splits_for"],
    "decoding images": ["famr.data.loaders.device_pixels"],
    "kernels": ["famr.engine.kernels.network.get_ready"],
    "the target": ["famr.unlearn.forget_loss._target"],
    "the frozen front": ["famr.unlearn.setting.front_of"],
    "anchors": ["famr.anchors.choose.anchors_for"],
    "what nobody reads": ["famr.engine.waking._asked", "famr.engine.waking._awaited"],
    "steps": ["famr.unlearn.loop.minimise"],
    "looking at the forget set": ["famr.unlearn.forget.followed"],
    "watching retained images": ["famr.unlearn.watch.watched_images", "famr.unlearn.watch.accuracy_now"],
    "scores": ["famr.evaluation.evaluate.compare"],
    "writing": ["famr.runs.folder.save_unlearned"],
}


class Clock:
    """Seconds of each part; of parts inside others only the innermost counts."""

    def __init__(self, begun: float) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float, {LIBRARIES: time.time() - begun})
        self._inside = [REST]
        self._since = time.perf_counter()
        self._thread = threading.get_ident()

    def _count(self, part: str) -> None:
        torch = sys.modules.get("torch")
        if part != LIBRARIES and torch is not None and torch.cuda.is_initialized():
            torch.cuda.synchronize()  # not for an import, which may come where nobody may wait: inside a capture
        now = time.perf_counter()
        self.seconds[self._inside[-1]] += now - self._since
        self._since = now

    def enter(self, part: str) -> None:
        """From here on it is this part; what is done beside the command by another thread takes none of its time."""
        if threading.get_ident() == self._thread:
            self._count(part)
            self._inside.append(part)

    def leave(self) -> None:
        """From here on it is again what it was before."""
        if threading.get_ident() == self._thread:
            self._count(self._inside[-1])
            self._inside.pop()

    def around(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, timed; of a generator each piece of its work."""
        if inspect.isgeneratorfunction(function):

            @functools.wraps(function)
            def pieces(*given: Any, **named: Any) -> Iterator[Any]:
                work = function(*given, **named)
                while True:
                    self.enter(part)
                    try:
                        found = next(work)
                    except StopIteration:
                        return
                    finally:
                        self.leave()
                    yield found

            return pieces

        @functools.wraps(function)
        def whole(*given: Any, **named: Any) -> Any:
            self.enter(part)
            try:
                return function(*given, **named)
            finally:
                self.leave()

        return whole


def wrap(clock: Clock) -> None:
    """Every function of `PARTS`, wherever it was imported to."""
    for part, names in PARTS.items():
        for name in names:
            place, _, function = name.rpartition(".")
            owner: Any
            try:
                owner = importlib.import_module(place)
            except ModuleNotFoundError:  # a method
                module, _, kind = place.rpartition(".")
                owner = getattr(importlib.import_module(module), kind)
            plain = getattr(owner, function)
            timed = clock.around(part, plain)
            setattr(owner, function, timed)
            for each in [each for key, each in sys.modules.items() if key.startswith("famr")]:
                for known, value in list(vars(each).items()):
                    if value is plain:
                        setattr(each, known, timed)


def main() -> None:
    begun, file, *command = sys.argv[1:]
    clock = Clock(float(begun))
    builtins.__import__ = clock.around(LIBRARIES, builtins.__import__)
    from famr.cli.main import main as famr_main

    wrap(clock)
    sys.argv = ["famr", *command]
    code: str | int | None = 0
    try:
        famr_main()
    except SystemExit as ended:
        code = ended.code
    clock.enter(REST)
    Path(file).write_text(json.dumps(dict(clock.seconds)), encoding="utf-8")
    sys.exit(code)


if __name__ == "__main__":
    main()
