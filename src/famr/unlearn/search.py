"""The strength of the anchors, chosen within a budget; and gates, so that a failed run is an error."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from famr.errors import GateError
from famr.metrics.paired import loss_p_value
from famr.unlearn.criteria import CLOSE, HALVED, Forgetting, class_forgetting

Result = TypeVar("Result")

TRIALS = 5
"""The most runs of a search."""
FACTOR = 10.0
"""How much stronger or weaker the next trial is while only one side is known."""
SIGNIFICANCE = 0.05
"""Level of the test that more was lost than the budget allows."""
SAME = 1e-4
"""Difference of two trials, as a share, at which they ended alike: an effect in proportion to 1/λ would reach a tenth
in the three trials that are left."""
NOTHING = 0.9
"""A forgetting loss above this share of its start: next to nothing was forgotten."""
DESTROYED = 0.5
"""Share of retained accuracy that a model must keep."""
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
        forgetting: How much was forgotten, by the criterion of this kind of request.
        retained_before: Accuracy of the original on some retained images; None without them.
        retained_after: The same at the end.
        predicted_drift: ½ΔᵀFΔ: the KL of retained predictions that Fisher information predicts; None without it.
        watched: Number of these retained images; None without them.
        lost_images: Those of them that the original classifies correctly and the result does not; None without them.
        gained_images: Those of them that the result classifies correctly and the original does not; None without them.
    """

    strength: float
    function_strength: float
    loss_before: float
    loss_after: float
    forget_accuracy: float | None
    chance: float
    forgetting: Forgetting
    retained_before: float | None
    retained_after: float | None
    predicted_drift: float | None
    watched: int | None = None
    lost_images: int | None = None
    gained_images: int | None = None

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """The inverse of `dataclasses.asdict`; records that lack the criterion or the counts are judged without.

        Args:
            record: The fields by name.
        """
        if "forgetting" in record:
            forgetting = Forgetting(**record["forgetting"])
        elif record["forget_accuracy"] is not None:
            forgetting = class_forgetting(record["forget_accuracy"], record["chance"])
        else:
            forgetting = Forgetting("L_forget", record["loss_after"], max(CLOSE, HALVED * record["loss_before"]))
        return cls(**{**record, "forgetting": forgetting})

    @property
    def forgot(self) -> bool:
        """Whether the request counts as forgotten."""
        return self.forgetting.met

    @property
    def lost(self) -> float | None:
        """Retained accuracy that was lost; the predicted drift where there are no retained images."""
        if self.retained_before is None or self.retained_after is None:
            return self.predicted_drift
        return self.retained_before - self.retained_after

    def within(self, budget: float) -> bool:
        """Whether no more was lost than a budget allows.

        Of retained images only a significant excess counts: `loss_p_value` of the images that changed is at most 5 %.
        A predicted drift is compared as it is, and so is a record without counts, in which one image may be lost.

        Args:
            budget: A share of retained accuracy.
        """
        if self.watched and self.lost_images is not None and self.gained_images is not None:
            return loss_p_value(self.lost_images, self.gained_images, self.watched, budget) > SIGNIFICANCE
        one_image = 1 / self.watched if self.watched else 0.0
        return self.lost is None or self.lost <= max(budget, one_image) + ROUNDING

    def ended_like(self, other: TrialOutcome) -> bool:
        """Whether two trials forgot and lost the same, so that their strengths make no difference.

        Args:
            other: The other trial, of the same search.
        """
        pairs = (
            (self.loss_after / (self.loss_before or 1.0), other.loss_after / (other.loss_before or 1.0)),
            (self.forgetting.value, other.forgetting.value),
            (self.lost or 0.0, other.lost or 0.0),
        )
        return all(abs(own - others) <= SAME for own, others in pairs)


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
        GateError: No strength forgets within the budget; the error says how to get the best trial.
    """
    outcomes: list[TrialOutcome] = []
    tried: list[tuple[float, bool, bool]] = []
    factor: float | None = 1.0
    while factor is not None:
        outcome, result = trial(factor)
        outcomes.append(outcome)
        tried.append((factor, outcome.forgot, outcome.within(budget)))
        one_sided = len({(forgot, within) for _, forgot, within in tried}) == 1
        no_difference = one_sided and len(outcomes) > 1 and outcome.ended_like(outcomes[-2])
        factor = next_factor(tried) if adjustable and not no_difference else None
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


def best_trial(outcomes: Sequence[TrialOutcome], budget: float) -> int:
    """Index of the trial that forgot with the smallest loss; else of the one within the budget that forgot most.

    Where there is neither, of the one that forgot most.

    Args:
        outcomes: Of all trials.
        budget: The share of retained accuracy that may be lost.
    """

    def rank(index: int) -> tuple[bool, bool, float, float]:
        outcome = outcomes[index]
        if outcome.forgot:
            return False, False, outcome.lost or 0.0, outcome.loss_after
        return True, not outcome.within(budget), outcome.forgetting.value, outcome.loss_after

    return min(range(len(outcomes)), key=rank)


def require_outcome(outcome: TrialOutcome) -> None:
    """The gates of every run: something was forgotten, and the model was not destroyed.

    Args:
        outcome: The outcome of the run.

    Raises:
        GateError: It forgot next to nothing, or lost half of its retained accuracy.
    """
    if error := _failed_gate(outcome):
        raise error


def _failed_gate(outcome: TrialOutcome) -> GateError | None:
    if outcome.loss_after > max(CLOSE, NOTHING * outcome.loss_before):
        return GateError(
            f"The run forgot next to nothing: loss from {outcome.loss_before:.3g} to {outcome.loss_after:.3g}.",
            where=f"strength {outcome.strength:g}",
            fix="Use a smaller strength, a larger learning rate or more epochs.",
        )
    before, after = outcome.retained_before, outcome.retained_after
    if before is not None and after is not None and after < DESTROYED * before:
        return GateError(
            f"The run destroyed the model: accuracy on retained images went from {before:.1%} to {after:.1%}.",
            where=f"strength {outcome.strength:g}",
            fix="Use a larger strength, a smaller learning rate, or the default method.",
        )
    return None


def _no_strength(outcomes: Sequence[TrialOutcome], budget: float) -> GateError:
    """The error for a budget that no strength meets: what was tried, and how to get the best of it."""
    number = best_trial(outcomes, budget)
    best = outcomes[number]
    forgot = "forgot" if best.forgot else "did not forget enough"
    kept = "not measured" if best.lost is None else "within the budget" if best.within(budget) else "over the budget"
    return GateError(
        f"No strength forgets within the budget of {budget:g}. The best trial is {number + 1} of {len(outcomes)}: it "
        f"{forgot}, and what it lost is {kept}: {_described(best)}.",
        where="; ".join(
            f"strengths {outcome.strength:g} and {outcome.function_strength:g}: {_described(outcome)}"
            for outcome in outcomes
        ),
        fix=f"{_settings_of(best)} Or allow a larger budget, more epochs or a larger edited share.",
    )


def _described(outcome: TrialOutcome) -> str:
    """What a trial forgot and lost."""
    if outcome.lost_images is not None:
        lost = f"{outcome.lost_images} of {outcome.watched} retained images lost, {outcome.gained_images} gained"
    else:
        lost = "loss not measured" if outcome.lost is None else f"lost {outcome.lost:.4f}"
    return f"{outcome.forgetting}, {lost}"


def _settings_of(outcome: TrialOutcome) -> str:
    """How to make the run of a trial again, on the command line and in Python; numbers have all their digits.

    A function-space anchor that the run does not have is not named: an explicit 0 may pick another weight anchor.
    """
    strengths = {"strength": outcome.strength}
    if outcome.function_strength:
        strengths["function_strength"] = outcome.function_strength
    flags = [f"--{name.replace('_', '-')} {value!r}" for name, value in strengths.items()]
    settings = ", ".join(f"{name}={value!r}" for name, value in strengths.items())
    python = f"`FAMR({settings})`"
    if _failed_gate(outcome):
        flags.append("--no-gates")
        python += " and `Monitor(gates=False)`"
    return f"To get the best trial, give `{' '.join(flags)}`, in Python {python}, beside the other settings."
