"""The limit in seconds that every method but retraining keeps to: how many of its steps fit.

A clock during a run would give other numbers of steps each time, so that no run could be repeated. Instead the seconds
of a step are measured for each method and kind of request in short runs on a tuning request, and the numbers of a trial
are cut: to as many whole epochs as fit, or to a part of the first, its schedule ending with the last step. Of repeated
short runs the fastest counts, so that the noise of the machine takes no steps away.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from famr.baselines import Baseline

PROBES = (8, 24)
"""Steps of the two short runs. Both are longer than what is slow at first, e.g. recording steps on a GPU."""
REPEATS = 2
"""How often each is made."""
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


Costs = dict[Hashable, StepCost]
"""Costs that were measured, by `cost_key`."""


def cost_key(method: Baseline) -> Hashable:
    """What the seconds of a step depend on: not on learning rates, schedules and the weights of a loss.

    Args:
        method: The method with its numbers.

    >>> from famr.baselines import SalUn
    >>> adam = SalUn().with_numbers(optimiser="adam")
    >>> cost_key(SalUn()) == cost_key(SalUn().with_numbers(learning_rate=0.1, share=0.2)) != cost_key(adam)
    True
    """
    steps = getattr(method, "steps", None)
    of_steps = None if steps is None else (steps.batch_size, steps.optimiser, steps.training_mode)
    return type(method), of_steps, tuple(number for number in vars(method).values() if isinstance(number, int))


def fit_into(
    method: Baseline, limit: float, run: Callable[[Baseline], Mapping[str, Any]], measured: Costs | None = None
) -> Fitted:
    """Cut a method so that it takes at most so many seconds.

    Args:
        method: The method with its numbers.
        limit: Seconds.
        run: Runs a method and returns its record, with `seconds`, and `steps` and `steps_planned` among its facts.
        measured: Costs on requests of this kind; those that are measured now are added. None: none are known.

    Returns:
        The method unchanged where it fits, cannot be cut, or fails in the short runs.
    """
    record: dict[str, Any] = {"limit": limit}
    measured = {} if measured is None else measured
    if method.shortened(1, UNCUT) == method:
        return Fitted(method, record | {"cut": "it takes no steps that could be left out"})
    runs = [run(method.shortened(1, UNCUT))]  # what a process does once is not timed
    key = cost_key(method)
    if key not in measured and "error" not in runs[0]:
        runs += [run(method.shortened(steps, UNCUT)) for steps in PROBES * REPEATS]
    if failed := next((each["error"]["what"] for each in runs if "error" in each), None):
        return Fitted(method, record | {"cut": f"not measured: {failed}"})
    planned = int(runs[0]["facts"]["steps_planned"])
    if key not in measured:
        short, long = (fastest(runs[1 + index :: len(PROBES)]) for index in range(len(PROBES)))
        measured[key] = StepCost.of(short, long, planned)
    cost = measured[key]._replace(planned=planned)
    steps = cost.steps_within(limit)
    fitted = method.shortened(steps, planned)
    cut = "uncut" if fitted == method else "less than it takes in all"
    return Fitted(fitted, record | cost._asdict() | {"steps": steps, "cut": cut})


def fastest(runs: Sequence[Mapping[str, Any]]) -> tuple[int, float]:
    """Steps and seconds of the fastest of several equal runs.

    Args:
        runs: Their records.

    >>> fastest([{"seconds": 0.5, "facts": {"steps": 8}}, {"seconds": 0.4, "facts": {"steps": 8}}])
    (8, 0.4)
    """
    best = min(runs, key=lambda run: float(run["seconds"]))
    return int(best["facts"]["steps"]), float(best["seconds"])


def longest_seconds(runs: list[Mapping[str, Any]]) -> float | None:
    """The limit that our runs on the tuning requests set: the longest of them; None if all failed.

    Args:
        runs: Their records.

    >>> longest_seconds([{"seconds": 0.5}, {"error": {}}, {"seconds": 0.8}])
    0.8
    """
    return max((float(run["seconds"]) for run in runs if "error" not in run), default=None)
