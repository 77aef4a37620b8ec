"""The limit in seconds that every method but retraining keeps to: how many of its steps fit.

A clock during a run would give other numbers of steps each time, so that no run could be repeated. Instead the seconds
of a step are measured once for each trial and kind of request, in two short runs on a tuning request, and the trial's
numbers are cut: to as many whole epochs as fit, or to a part of the first, its schedule ending with the last step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from famr.baselines import Baseline

PROBES = (8, 24)
"""Steps of the two short runs. Both are longer than what is slow at first, e.g. recording steps on a GPU."""
ROUNDING = 1e-6
"""Part of a step that is rounding."""
UNCUT = 1 << 40
"""More steps than any method takes."""


class StepCost(NamedTuple):
    """What the steps of a method cost.

    Attributes:
        preparation: Seconds of everything but the steps.
        step: Seconds of a step.
        planned: Steps that it takes uncut.
    """

    preparation: float
    step: float
    planned: int

    @classmethod
    def of(cls, short: tuple[int, float], long: tuple[int, float], planned: int) -> StepCost:
        """The cost from two runs: the line through both.

        Args:
            short: Steps and seconds of the shorter run.
            long: Those of the longer one.
            planned: Steps that the method takes uncut.

        >>> StepCost.of((8, 1.5), (24, 3.5), planned=100)
        StepCost(preparation=0.5, step=0.125, planned=100)
        """
        (steps, seconds), (more, longer) = short, long
        if more <= steps:  # the whole method is that short
            return cls(0.0, longer / more, planned)
        step = max(0.0, (longer - seconds) / (more - steps))
        return cls(max(0.0, seconds - steps * step), step, planned)

    @property
    def seconds(self) -> float:
        """Of the whole method, uncut."""
        return self.preparation + self.planned * self.step

    def steps_within(self, limit: float) -> int:
        """Steps that fit, at least 1.

        Args:
            limit: Seconds.

        >>> cost = StepCost(preparation=0.5, step=0.125, planned=100)
        >>> [cost.steps_within(limit) for limit in (60.0, 3.5, 0.1)]
        [100, 24, 1]
        """
        if self.seconds <= limit:
            return self.planned
        steps = (limit - self.preparation) / self.step
        return max(1, min(self.planned, math.floor(steps + ROUNDING)))


class Fitted(NamedTuple):
    """A method within the limit.

    Attributes:
        method: With the numbers that fit.
        record: Limit, measured seconds, steps that are taken and planned, as plain values.
    """

    method: Baseline
    record: dict[str, Any]


def fit_into(method: Baseline, limit: float, run: Callable[[Baseline], Mapping[str, Any]]) -> Fitted:
    """Cut a method so that it takes at most so many seconds.

    Args:
        method: The method with its numbers.
        limit: Seconds.
        run: Runs a method and returns its record, with `seconds`, and `steps` and `steps_planned` among its facts.

    Returns:
        The method unchanged where it fits, cannot be cut, or fails in the short runs.
    """
    record: dict[str, Any] = {"limit": limit}
    if method.shortened(1, UNCUT) == method:
        return Fitted(method, record | {"cut": "it takes no steps that could be left out"})
    runs = [run(method.shortened(steps, UNCUT)) for steps in PROBES]
    if failed := next((each["error"]["what"] for each in runs if "error" in each), None):
        return Fitted(method, record | {"cut": f"not measured: {failed}"})
    planned = int(runs[1]["facts"]["steps_planned"])
    short, long = ((int(each["facts"]["steps"]), float(each["seconds"])) for each in runs)
    cost = StepCost.of(short, long, planned)
    steps = cost.steps_within(limit)
    fitted = method.shortened(steps, planned)
    cut = "uncut" if fitted == method else "less than it takes in all"
    return Fitted(fitted, record | cost._asdict() | {"steps": steps, "cut": cut})


def longest_seconds(runs: list[Mapping[str, Any]]) -> float | None:
    """The limit that our runs on the tuning requests set: the longest of them; None if all failed.

    Args:
        runs: Their records.

    >>> longest_seconds([{"seconds": 0.5}, {"error": {}}, {"seconds": 0.8}])
    0.8
    """
    return max((float(run["seconds"]) for run in runs if "error" not in run), default=None)
