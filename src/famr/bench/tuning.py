"""Tuning: the same few runs for every method, on requests that are not scored; the smallest Avg. Gap is taken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from famr.alternatives import Alternative, Steps


def variants(method: Alternative, most: int) -> list[Alternative]:
    """At most so many of a method's trials, spread over them, the method's own numbers among them.

    >>> from famr.alternatives import FineTune
    >>> [variant.steps.learning_rate for variant in variants(FineTune(), 3)]
    [0.001, 0.01, 0.3]
    """
    every: list[Alternative] = list(method.trials())
    if most <= 1:
        return [method]
    if len(every) <= most:
        return every
    places = [round(step * (len(every) - 1) / (most - 1)) for step in range(most)]
    if method in every and every.index(method) not in places:
        own = every.index(method)
        inner = places[1:-1] or places[-1:]
        places[places.index(min(inner, key=lambda place: abs(place - own)))] = own
    return [every[place] for place in places]


def within(method: Alternative, epochs: int | None) -> Alternative:
    """The method with at most so many epochs over the retained images; one that does not take any is as it is.

    >>> from famr.alternatives import Delete, FineTune
    >>> within(FineTune(), 2).steps.epochs, within(FineTune(), None).steps.epochs, within(Delete(), 2).steps.epochs
    (2, 10, 20)
    """
    steps = getattr(method, "steps", None)
    if epochs is None or not method.needs_retain or not isinstance(steps, Steps):
        return method
    return replace(method, steps=replace(steps, epochs=min(epochs, steps.epochs)))  # type: ignore[type-var]


def best_trial(runs: Sequence[Mapping[str, Any]]) -> int | None:
    """The place of the run with the smallest Avg. Gap; None where all failed.

    >>> best_trial([{"error": {}}, {"unlearned": {"average_gap": 0.2}}, {"unlearned": {"average_gap": 0.1}}])
    2
    """
    done = {place: run["unlearned"]["average_gap"] for place, run in enumerate(runs) if "error" not in run}
    return min(done, key=lambda place: done[place]) if done else None
