"""The strength of the anchors, chosen within a budget; and gates, so that a failed run is an error."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from famr.errors import GateError

Result = TypeVar("Result")

TRIALS = 5
"""The most runs of a search."""
FACTOR = 10.0
"""How much stronger or weaker the next trial is while only one side is known."""
FORGOTTEN = 0.01
"""Forget accuracy at which whole classes count as forgotten; twice the chance of the target, if that is more."""
HALVED = 0.5
"""Share of the starting loss at which samples count as forgotten; share of retained accuracy that a model must keep."""
CLOSE = 0.01
"""KL to the target, in nats, at which there is nothing left to forget."""
NOTHING = 0.9
"""A forgetting loss above this share of its start: next to nothing was forgotten."""
ROUNDING = 1e-6
"""Error of an accuracy in float arithmetic, at most."""


@dataclass(frozen=True)
class TrialOutcome:
    """The outcome of a run with one strength.

    Attributes:
        strength: λ of the weight anchor.
        function_strength: λ of the function-space anchor; 0 without one.
        loss_before: L_forget of the original.
        loss_after: L_forget at the end.
        forget_accuracy: On the forget set; None where no whole class is forgotten, as then a correct prediction is no
            failure.
        chance: The accuracy on forgotten classes of a model that predicts the target.
        retained_before: Accuracy of the original on some retained images; None without them.
        retained_after: The same at the end.
        predicted_drift: ½ΔᵀFΔ: the KL of retained predictions that Fisher information predicts; None without it.
        watched: Number of these retained images; None without them.
    """

    strength: float
    function_strength: float
    loss_before: float
    loss_after: float
    forget_accuracy: float | None
    chance: float
    retained_before: float | None
    retained_after: float | None
    predicted_drift: float | None
    watched: int | None = None

    @property
    def forgot(self) -> bool:
        """Whether classes are no longer recognised; of samples, whether the loss is at most half of what it was."""
        if self.forget_accuracy is not None:
            return self.forget_accuracy <= max(FORGOTTEN, 2 * self.chance)
        return self.loss_after <= max(CLOSE, HALVED * self.loss_before)

    @property
    def lost(self) -> float | None:
        """Retained accuracy that was lost; the predicted drift where there are no retained images."""
        if self.retained_before is None or self.retained_after is None:
            return self.predicted_drift
        return self.retained_before - self.retained_after

    def within(self, budget: float) -> bool:
        """Whether no more was lost than a budget allows; one image may always be lost, as less cannot be measured.

        Args:
            budget: A share of retained accuracy.
        """
        one_image = 1 / self.watched if self.watched else 0.0
        return self.lost is None or self.lost <= max(budget, one_image) + ROUNDING


def search_strength(
    trial: Callable[[float], tuple[TrialOutcome, Result]], budget: float, *, adjustable: bool
) -> tuple[tuple[TrialOutcome, ...], Result]:
    """Find a strength that forgets within the budget, in at most five runs.

    Args:
        trial: Makes a run with all strengths multiplied by a factor; returns its outcome and its result.
        budget: The share of retained accuracy that may be lost.
        adjustable: Whether any anchor has a strength other than zero; without one a single trial is made.

    Returns:
        The outcomes of all trials, and the result of the last one.

    Raises:
        GateError: No strength forgets within the budget.
    """
    outcomes: list[TrialOutcome] = []
    tried: list[tuple[float, bool, bool]] = []
    factor: float | None = 1.0
    while factor is not None:
        outcome, result = trial(factor)
        outcomes.append(outcome)
        tried.append((factor, outcome.forgot, outcome.within(budget)))
        factor = next_factor(tried) if adjustable else None
    if not (tried[-1][1] and tried[-1][2]):
        raise _no_strength(outcomes, budget)
    return tuple(outcomes), result


def next_factor(tried: Sequence[tuple[float, bool, bool]]) -> float | None:
    """The next factor to try; None when one forgot within the budget, or none can.

    While only one side is known the factor changes tenfold; then it is the geometric mean of the two sides.

    Args:
        tried: (factor, forgot, within the budget) of each trial.

    >>> next_factor([(1.0, False, True)]), next_factor([(1.0, True, False)])
    (0.1, 10.0)
    >>> next_factor([(1.0, False, True), (0.25, True, False)])
    0.5
    >>> next_factor([(1.0, True, True)]) is None
    True
    """
    factor, forgot, within = tried[-1]
    if forgot == within or len(tried) == TRIALS:
        return None
    too_strong = min((f for f, forgot, within in tried if within and not forgot), default=None)
    too_weak = max((f for f, forgot, within in tried if forgot and not within), default=None)
    if too_strong is not None and too_weak is not None:
        return math.sqrt(too_strong * too_weak)
    return factor / FACTOR if too_weak is None else factor * FACTOR


def require_outcome(outcome: TrialOutcome) -> None:
    """The gates of every run: something was forgotten, and the model was not destroyed.

    Args:
        outcome: The outcome of the run.

    Raises:
        GateError: It forgot next to nothing, or lost half of its retained accuracy.
    """
    if outcome.loss_after > max(CLOSE, NOTHING * outcome.loss_before):
        raise GateError(
            f"The run forgot next to nothing: loss from {outcome.loss_before:.3g} to {outcome.loss_after:.3g}.",
            where=f"strength {outcome.strength:g}",
            fix="Use a smaller strength, a larger learning rate or more epochs.",
        )
    before, after = outcome.retained_before, outcome.retained_after
    if before is not None and after is not None and after < HALVED * before:
        raise GateError(
            f"The run destroyed the model: accuracy on retained images went from {before:.1%} to {after:.1%}.",
            where=f"strength {outcome.strength:g}",
            fix="Use a larger strength, a smaller learning rate, or the default method.",
        )


def _no_strength(outcomes: Sequence[TrialOutcome], budget: float) -> GateError:
    """The error for a budget that no strength meets, with what was tried."""

    def described(outcome: TrialOutcome) -> str:
        accuracy = "unknown" if outcome.forget_accuracy is None else f"{outcome.forget_accuracy:.1%}"
        lost = "not measured" if outcome.lost is None else f"{outcome.lost:.4f}"
        lost += f" of {outcome.watched} retained images" if outcome.watched else ""
        strengths = f"{outcome.strength:g} and {outcome.function_strength:g}"
        return f"{strengths}: forget accuracy {accuracy}, loss {outcome.loss_after:.3g}, lost {lost}"

    return GateError(
        f"No strength forgets within the budget of {budget:g}.",
        where="; ".join(described(outcome) for outcome in outcomes),
        fix="Allow a larger budget, more epochs or a larger edited share; or give a strength as a number.",
    )
