"""Tuning: the same few runs for every method, on requests that are not scored; the smallest Avg. Gap is taken."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from famr.baselines import Baseline as Alternative
from famr.baselines import Steps


def variants(method: Alternative, most: int, epochs: int | None = None) -> list[Alternative]:
    """At most so many of a method's trials, spread over them, the method's own numbers among them.

    `epochs`: over the retained images at most; trials that do not differ then are one.

    >>> from famr.baselines import FineTune, Scrub
    >>> [variant.steps.learning_rate for variant in variants(FineTune(), 3)]
    [0.001, 0.01, 0.1]
    >>> len(variants(Scrub(), 6)), len(variants(Scrub(), 6, epochs=1))
    (6, 3)
    """
    own = within(method, epochs)
    if most <= 1:
        return [own]
    limited = [within(trial, epochs) for trial in own.trials()]
    every = [trial for place, trial in enumerate(limited) if trial not in limited[:place]]
    if len(every) <= most:
        return every
    share = len(every) / most
    places = [math.ceil((step + 0.5) * share - 1) for step in range(most)]  # the middle of each share
    if own in every and (place := every.index(own)) not in places:
        places[places.index(min(places, key=lambda each: abs(each - place)))] = place
    return [every[place] for place in places]


def within(method: Alternative, epochs: int | None) -> Alternative:
    """The method with at most so many epochs over the retained images; one that does not take any is as it is.

    >>> from famr.baselines import Delete, FineTune
    >>> within(FineTune(), 2).steps.epochs, within(FineTune(), None).steps.epochs, within(Delete(), 2).steps.epochs
    (2, 10, 20)
    """
    steps = getattr(method, "steps", None)
    if epochs is None or not method.needs_retain or not isinstance(steps, Steps):
        return method
    return method.with_numbers(epochs=min(epochs, steps.epochs))


def best_trial(runs: Sequence[Mapping[str, Any]]) -> int | None:
    """The place of the run with the smallest Avg. Gap; None where all failed.

    >>> best_trial([{"error": {}}, {"unlearned": {"average_gap": 0.2}}, {"unlearned": {"average_gap": 0.1}}])
    2
    """
    done = {place: run["unlearned"]["average_gap"] for place, run in enumerate(runs) if "error" not in run}
    return min(done, key=lambda place: done[place]) if done else None
