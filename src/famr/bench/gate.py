"""The gate by which the numbers of every method are chosen, ours included; it needs no retrained model.

A trial passes where it forgets and the model still works. Of those that pass, the one with the highest held-out
accuracy is chosen; where none passes, the one nearest to the gate. Both accuracies are means over the tuning requests,
on images that are never scored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from famr.unlearn.criteria import FORGOTTEN
from famr.unlearn.search import DESTROYED, ROUNDING

MARGIN = 0.02
"""How far the accuracy on forgotten samples may be from that of the original on images that it never saw."""


class TrialFigures(NamedTuple):
    """What is known of a trial, without a retrained model.

    Attributes:
        forget: Accuracy on the forget set.
        held_out: Accuracy on held-out images that are not forgotten.
        original: That of the original on the same held-out images.
    """

    forget: float
    held_out: float
    original: float


def gate_distance(kind: str, figures: TrialFigures, classes: int) -> float:
    """How far a trial is from passing, in accuracy; 0 where it passes.

    A class is forgotten where it is recognised at most by chance, 1/C, or in 1 % of its images. Samples are forgotten
    where they are recognised as often as images that the original never saw, give or take 2 points. And a model that
    lost half of its held-out accuracy is destroyed, whatever it forgot.

    Args:
        kind: `class` or `samples`.
        figures: Of the trial.
        classes: C.

    >>> gate_distance("class", TrialFigures(forget=0.0, held_out=0.8, original=0.9), classes=100)
    0.0
    >>> round(gate_distance("class", TrialFigures(0.11, 0.8, 0.9), classes=100), 6)
    0.1
    >>> [round(gate_distance("samples", TrialFigures(f, 0.8, 0.9), classes=100), 6) for f in (1.0, 0.91, 0.7)]
    [0.08, 0.0, 0.18]
    """
    if kind == "samples":
        excess = abs(figures.forget - figures.original) - MARGIN
    else:
        excess = figures.forget - max(FORGOTTEN, 1 / classes)
    missing = DESTROYED * figures.original - figures.held_out
    return sum((distance for distance in (excess, missing) if distance > ROUNDING), start=0.0)


def choose_trial(kind: str, trials: Sequence[TrialFigures | None], classes: int) -> int | None:
    """The index of the trial that is chosen; None if all failed.

    Args:
        kind: `class` or `samples`.
        trials: Figures of each trial; None: it failed.
        classes: Number of classes.

    >>> destroyed, forgets = TrialFigures(0.0, 0.01, 0.9), TrialFigures(0.0, 0.85, 0.9)
    >>> forgets_too, remembers = TrialFigures(0.005, 0.87, 0.9), TrialFigures(0.9, 0.9, 0.9)
    >>> choose_trial("class", [None, destroyed, forgets, forgets_too, remembers], classes=100)
    3
    >>> choose_trial("class", [remembers, destroyed], classes=100)
    1
    """
    known = {index: figures for index, figures in enumerate(trials) if figures is not None}
    if not known:
        return None
    return min(known, key=lambda index: (gate_distance(kind, known[index], classes), -known[index].held_out))


def mean_figures(runs: Sequence[Mapping[str, Any]]) -> TrialFigures | None:
    """The figures of a trial over all tuning requests; None if it failed on one of them.

    Args:
        runs: Its records, one a request.
    """
    if not runs or any("error" in run for run in runs):
        return None
    return TrialFigures(
        *(fmean(run[name] for run in runs) for name in ("forget_accuracy", "held_out_accuracy", "original_accuracy"))
    )
