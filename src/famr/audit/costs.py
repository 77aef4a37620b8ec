"""Seconds of each part of an audit, and how many are left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class PartDone:
    """A part of the work is done.

    Attributes:
        name: What was done.
        done: Parts so far.
        total: Parts in all.
        seconds_left: As long as the remaining parts take if they take as long as those so far.
    """

    name: str
    done: int
    total: int
    seconds_left: float


OnPart = Callable[[PartDone], None]


class Stopwatch:
    """Seconds by the name of a part; a part that is entered again adds to its own.

    Args:
        on_part: Called by `done`; None: nobody is told.

    Attributes:
        seconds: By part.
    """

    def __init__(self, on_part: OnPart | None = None) -> None:
        self.seconds: dict[str, float] = {}
        self._on_part, self._start = on_part, time.perf_counter()

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        """Count the seconds inside.

        Args:
            part: Where they are added.
        """
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[part] = self.seconds.get(part, 0.0) + time.perf_counter() - start

    def done(self, name: str, done: int, total: int) -> None:
        """Tell how far the work is.

        Args:
            name: What was just done.
            done: Parts so far, at least 1.
            total: Parts in all.
        """
        if self._on_part is not None:
            spent = time.perf_counter() - self._start
            self._on_part(PartDone(name, done, total, spent / done * (total - done)))
