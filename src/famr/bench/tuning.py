"""Tuning: the same few runs for every method, on requests that are not scored; the smallest Avg. Gap is taken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from famr.alternatives import Alternative


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


def best_trial(runs: Sequence[Mapping[str, Any]]) -> int | None:
    """The place of the run with the smallest Avg. Gap; None where all failed.

    >>> best_trial([{"error": {}}, {"unlearned": {"average_gap": 0.2}}, {"unlearned": {"average_gap": 0.1}}])
    2
    """
    done = {place: run["unlearned"]["average_gap"] for place, run in enumerate(runs) if "error" not in run}
    return min(done, key=lambda place: done[place]) if done else None
