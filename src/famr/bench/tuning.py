"""Tuning: at most the same number of trials for every method, on requests that are not scored."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from famr.baselines import Baseline, Steps


def tuning_variants(method: Baseline, most: int, epochs: int | None = None) -> list[Baseline]:
    """At most `most` of a method's trials, spread evenly over them, the method's own numbers among them.

    Args:
        method: The method with its default numbers.
        most: How many trials it may have; 1 or less: its own numbers alone.
        epochs: Limit on the epochs over retained images; trials that the limit makes equal are one. None: no limit.

    >>> from famr.baselines import FineTune, Scrub
    >>> [variant.steps.learning_rate for variant in tuning_variants(FineTune(), 3)]
    [0.001, 0.01, 0.1]
    >>> len(tuning_variants(Scrub(), 6)), len(tuning_variants(Scrub(), 6, epochs=1))
    (6, 3)
    """
    own = limit_epochs(method, epochs)
    if most <= 1:
        return [own]
    limited = [limit_epochs(trial, epochs) for trial in own.trials()]
    every = [trial for index, trial in enumerate(limited) if trial not in limited[:index]]
    if len(every) <= most:
        return every
    share = len(every) / most
    indices = [math.ceil((step + 0.5) * share - 1) for step in range(most)]  # the middle of each share
    if own in every and (index := every.index(own)) not in indices:
        nearest = min(indices, key=lambda other: abs(other - index))
        indices[indices.index(nearest)] = index
    return [every[index] for index in indices]


def limit_epochs(method: Baseline, epochs: int | None) -> Baseline:
    """The method with at most so many epochs over the retained images; unchanged if it does not use them.

    Args:
        method: The method.
        epochs: The limit; None: no limit.

    >>> from famr.baselines import Delete, FineTune
    >>> [limit_epochs(method, 2).steps.epochs for method in (FineTune(), Delete())], FineTune().steps.epochs
    ([2, 20], 10)
    """
    steps = getattr(method, "steps", None)
    if epochs is None or not method.needs_retain or not isinstance(steps, Steps):
        return method
    return method.with_numbers(epochs=min(epochs, steps.epochs))


def best_trial(runs: Sequence[Mapping[str, Any]]) -> int | None:
    """The index of the run with the smallest Avg. Gap; None if all failed.

    Args:
        runs: Cells of the trials.

    >>> best_trial([{"error": {}}, {"unlearned": {"average_gap": 0.2}}, {"unlearned": {"average_gap": 0.1}}])
    2
    """
    gaps = {index: run["unlearned"]["average_gap"] for index, run in enumerate(runs) if "error" not in run}
    return min(gaps, key=lambda index: gaps[index]) if gaps else None
