"""Trials of a method's numbers: at most the same number for every method, its own and its paper's always among them."""

from __future__ import annotations

import math

from famr.baselines import Baseline


def tuning_variants(method: Baseline, most: int) -> list[Baseline]:
    """At most `most` of a method's trials: its own numbers, those of its paper, and others spread evenly.

    Args:
        method: The method with its default numbers.
        most: How many trials it may have; 1 or less: its own numbers alone.

    >>> from famr.baselines import Delete
    >>> [variant.steps.learning_rate for variant in tuning_variants(Delete(), 4)]
    [0.001, 5e-05, 0.0003, 1e-05]
    """
    if most <= 1:
        return [method]
    every = list(method.trials())
    if len(every) <= most:
        return every
    always = [trial for trial in every if trial in (method, method.as_published())][:most]
    others = [trial for trial in every if trial not in always]
    free = most - len(always)
    share = len(others) / free if free else 0.0
    return always + [others[math.floor(step * share)] for step in range(free)]
