"""Gates, and the strength chosen for the user: a run neither does nothing nor destroys the model unnoticed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVarTuple

from torch import nn

from famr.anchors import Anchor, FisherAnchor, KFACAnchor
from famr.config import FAMR
from famr.errors import GateError

Found = TypeVarTuple("Found")

TRIALS = 5
FACTOR = 10.0
FORGOTTEN = 0.01
"""For-Acc at which whole classes count as forgotten while a strength is sought; twice chance for a uniform target."""
HALF = 0.5
CLOSE = 0.01
"""Nats to the target at which there is nothing left to forget."""
NOTHING = 0.9
"""A forgetting loss that is still above this share of where it began: nothing was done."""
ROUNDING = 1e-6
"""What an accuracy may be off by."""
START = {
    ("natural", "l2"): 0.0,  # the plain gradient: no strength changes its direction
    ("natural", "fisher"): 1e3,
    ("natural", "kfac"): 1e2,
    ("penalty", "l2"): 1e-4,
    ("penalty", "fisher"): 1e4,
    ("penalty", "kfac"): 1e2,
}


@dataclass(frozen=True)
class Outcome:
    """What a run with one strength came to, in the numbers the gates look at."""

    strength: float
    function_strength: float
    loss_before: float
    loss_after: float
    forget_accuracy: float | None
    """None where no whole class is forgotten: then a right answer is no failure."""
    chance: float
    """The accuracy that the target itself has."""
    retained_before: float | None
    """Accuracy on some retained images; None without them."""
    retained_after: float | None
    predicted_drift: float | None
    """½ΔᵀFΔ: the change of retained answers in nats that the Fisher information predicts; None without it."""
    watched: int | None = None
    """How many retained images that accuracy is of."""

    @property
    def forgot(self) -> bool:
        """A class is no longer recognised; else, the loss is at most half of what it was."""
        if self.forget_accuracy is not None:
            return self.forget_accuracy <= max(FORGOTTEN, 2 * self.chance)
        return self.loss_after <= max(CLOSE, HALF * self.loss_before)

    @property
    def lost(self) -> float | None:
        """The share of retained answers lost, or the predicted drift where there are no retained images."""
        if self.retained_before is None or self.retained_after is None:
            return self.predicted_drift
        return self.retained_before - self.retained_after

    def kept(self, budget: float) -> bool:
        """Whether no more was lost than the budget allows: one image at least, as no fewer can be seen to be lost."""
        one = 1 / self.watched if self.watched else 0.0
        return self.lost is None or self.lost <= max(budget, one) + ROUNDING


def predicted_drift(anchor: Anchor, parameters: Sequence[nn.Parameter]) -> float | None:
    """½ΔᵀFΔ of an anchor that knows the Fisher information."""
    return float(anchor.penalty(parameters)) if isinstance(anchor, FisherAnchor | KFACAnchor) else None


def with_firmness(method: FAMR, firmness: float) -> FAMR:
    """Every anchor that much firmer than where the search begins."""
    start = START["natural" if method.optimiser == "natural" else "penalty", method.anchor]
    return replace(method, strength=firmness * start, function_strength=firmness * (method.function_strength or 0.0))


def seek_strength(
    attempt: Callable[[FAMR], tuple[Outcome, *Found]], method: FAMR
) -> tuple[tuple[Outcome, ...], tuple[*Found]]:
    """Strengths that forget within the budget, in a handful of runs; the last one is the one."""
    outcomes: list[Outcome] = []
    tried: list[tuple[float, bool, bool]] = []
    firmness: float | None = 1.0
    while firmness is not None:
        outcome, *found = attempt(with_firmness(method, firmness))
        outcomes.append(outcome)
        tried.append((firmness, outcome.forgot, outcome.kept(method.budget)))
        firmness = next_firmness(tried)
        if with_firmness(method, 0.0) == with_firmness(method, 1.0):
            break  # there is nothing to make firmer
    if not (tried[-1][1] and tried[-1][2]):
        raise no_strength(outcomes, method.budget)
    return tuple(outcomes), tuple(found)  # type: ignore[return-value]


def next_firmness(tried: Sequence[tuple[float, bool, bool]]) -> float | None:
    """The next to try after (firmness, forgot, kept)…; None when one did both, or when none can.

    >>> next_firmness([(1.0, False, True)]), next_firmness([(1.0, True, False)])
    (0.1, 10.0)
    >>> next_firmness([(1.0, False, True), (0.25, True, False)])
    0.5
    >>> next_firmness([(1.0, True, True)]) is None
    True
    """
    firmness, did_forget, did_keep = tried[-1]
    if did_forget == did_keep or len(tried) == TRIALS:
        return None
    too_firm = min((f for f, forgets, keeps in tried if keeps and not forgets), default=None)
    too_loose = max((f for f, forgets, keeps in tried if forgets and not keeps), default=None)
    if too_firm is not None and too_loose is not None:
        return math.sqrt(too_firm * too_loose)
    return firmness / FACTOR if too_loose is None else firmness * FACTOR


def require_outcome(outcome: Outcome) -> None:
    """The gates of every run: something was forgotten, and the model is still a model."""
    if outcome.loss_after > max(CLOSE, NOTHING * outcome.loss_before):
        raise GateError(
            f"The run forgot next to nothing: loss from {outcome.loss_before:.3g} to {outcome.loss_after:.3g}.",
            where=f"strength {outcome.strength:g}",
            fix="Use a smaller strength, a larger learning rate or more epochs.",
        )
    if (
        outcome.retained_before is not None
        and outcome.retained_after is not None
        and outcome.retained_after < HALF * outcome.retained_before
    ):
        raise GateError(
            f"The run destroyed the model: accuracy on retained images went from {outcome.retained_before:.1%} to "
            f"{outcome.retained_after:.1%}.",
            where=f"strength {outcome.strength:g}",
            fix="Use a larger strength, a smaller learning rate, or the default method.",
        )


def no_strength(outcomes: Sequence[Outcome], budget: float) -> GateError:
    """The error for a budget that no strength meets, with what was tried."""

    def told(outcome: Outcome) -> str:
        accuracy = "unknown" if outcome.forget_accuracy is None else f"{outcome.forget_accuracy:.1%}"
        lost = "not measured" if outcome.lost is None else f"{outcome.lost:.4f}"
        lost += f" of {outcome.watched} retained images" if outcome.watched else ""
        strengths = f"{outcome.strength:g} and {outcome.function_strength:g}"
        return f"{strengths}: forget accuracy {accuracy}, loss {outcome.loss_after:.3g}, lost {lost}"

    return GateError(
        f"No strength forgets within the budget of {budget:g}.",
        where="; ".join(told(outcome) for outcome in outcomes),
        fix="Allow a larger budget, more epochs or a larger edited share; or give a strength as a number.",
    )
