"""A chain of runs: what all of them together cost, whether the budget is spent, and whether it all stays forgotten."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from famr.errors import CheckpointError, RequestError

Forgetting = Literal["still forgotten", "came back", "cannot tell"]
REGAINED = 0.1
"""The share of what forgetting did to the cross-entropy of samples that may be undone before they count as back."""
RAISED = 0.01
"""The least rise of that cross-entropy, in nats, by which forgetting can be told from nothing."""
RISEN = 0.01
"""By how much the accuracy on a forgotten class may rise before it counts as back."""


@dataclass(frozen=True)
class Budget:
    """What a chain of runs may cost before the model should be trained anew; None sets no limit."""

    retained_loss: float | None = 0.02
    """Of held-out retained accuracy, as a fraction."""
    drift: float | None = None
    """Of the weights, in the Euclidean norm."""

    def __post_init__(self) -> None:
        for name in ("retained_loss", "drift"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise RequestError(f"A budget is a number above 0, got {value!r}.", where=name)


@dataclass(frozen=True)
class Step:
    """One run of the chain."""

    name: str
    drift: float
    retained_before: float | None
    """Held-out retained accuracy of the model it began with; None where it was not measured."""
    retained_after: float | None

    @property
    def retained_loss(self) -> float | None:
        """What the run cost."""
        if self.retained_before is None or self.retained_after is None:
            return None
        return self.retained_before - self.retained_after


def read_step(folder: Path) -> Step:
    """A run of the chain, from its records."""
    metrics = folder / "unlearning/metrics.json"
    try:
        run = json.loads((folder / "unlearning/run.json").read_text(encoding="utf-8"))
        found = json.loads(metrics.read_text(encoding="utf-8")) if metrics.is_file() else {}
        before, after = ((found.get(name) or {}).get("retain_accuracy") for name in ("original", "unlearned"))
        return Step(folder.name, run["drift"], before, after)
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(
            "A run of the chain is missing or damaged.", where=str(folder), fix="Restore it from a copy."
        ) from error


@dataclass(frozen=True)
class Spent:
    """What a chain has cost."""

    runs: int
    drift: float
    """The sum over the runs, so at most so far from the first model."""
    retained_loss: float
    """The sum over the runs that measured it, each on its own held-out images."""
    unmeasured: int
    """Runs that did not measure it."""


def spent(steps: Iterable[Step]) -> Spent:
    """Add up a chain.

    >>> spent([Step("a", 2.0, 0.98, 0.97), Step("b", 1.0, 0.97, 0.975), Step("c", 1.0, None, None)])
    Spent(runs=3, drift=4.0, retained_loss=0.005, unmeasured=1)
    """
    found = list(steps)
    losses = [step.retained_loss for step in found]
    known = [loss for loss in losses if loss is not None]
    return Spent(len(found), sum(step.drift for step in found), round(sum(known), 12) + 0.0, len(losses) - len(known))


def is_spent(cost: Spent, budget: Budget) -> bool:
    """Whether a stated budget is reached.

    >>> is_spent(Spent(1, 9.0, 0.02, 0), Budget()), is_spent(Spent(1, 9.0, 0.01, 0), Budget())
    (True, False)
    """
    loss = budget.retained_loss is not None and cost.retained_loss >= budget.retained_loss
    return loss or (budget.drift is not None and cost.drift >= budget.drift)


def told(cost: Spent, budget: Budget) -> str:
    """What the chain has cost, against the budget, in a sentence.

    >>> told(Spent(2, 3.25, 0.004, 0), Budget())
    'Chain of 2 runs: drift at most 3.25, retained accuracy lost 0.40 of 2.00 points; within budget.'
    >>> told(Spent(1, 1.0, -0.0031, 0), Budget())
    'Chain of 1 run: drift at most 1, retained accuracy gained 0.31 points (2.00 may be lost); within budget.'
    >>> told(Spent(1, 5.0, 0.0, 1), Budget(drift=4.0))[-46:]
    'measure it); retrain now, the budget is spent.'
    """
    drift = f"{cost.drift:.4g}" + ("" if budget.drift is None else f" of {budget.drift:g}")
    missing = f" ({cost.unmeasured} runs did not measure it)" if cost.unmeasured else ""
    verdict = "retrain now, the budget is spent" if is_spent(cost, budget) else "within budget"
    runs = f"Chain of {cost.runs} run{'' if cost.runs == 1 else 's'}"
    return f"{runs}: drift at most {drift}, retained accuracy {_lost(cost, budget)}{missing}; {verdict}."


def _lost(cost: Spent, budget: Budget) -> str:
    """A loss against its budget; a gain is called one."""
    points, limit = 100 * cost.retained_loss, budget.retained_loss
    if points < 0:
        return f"gained {-points:.2f} points{'' if limit is None else f' ({100 * limit:.2f} may be lost)'}"
    return f"lost {points:.2f}{'' if limit is None else f' of {100 * limit:.2f}'} points"


@dataclass(frozen=True)
class Look:
    """How a model answers the images of a request: how many there are, accuracy and mean cross-entropy in nats."""

    images: int
    accuracy: float | None
    cross_entropy: float | None


def stays_forgotten(kind: str, before: Look | None, then: Look | None, now: Look | None) -> tuple[Forgetting, str]:
    """Compare a request's images before its own run, right after it, and now.

    A class is back when its accuracy has risen. Samples of classes that stay may well be answered rightly; they are
    back when their cross-entropy has returned towards where it was before they were forgotten.

    >>> stays_forgotten("class", None, Look(9, 0.0, 5.0), Look(9, 0.5, 1.0))[0]
    'came back'
    >>> stays_forgotten("samples", Look(9, 1.0, 0.1), Look(9, 0.9, 1.1), Look(9, 0.9, 1.08))
    ('still forgotten', 'cross-entropy 0.100 before, 1.100 after its run, 1.080 now')
    >>> stays_forgotten("samples", Look(9, 1.0, 0.5466), Look(9, 1.0, 0.5469), Look(9, 1.0, 0.5444))[0]
    'cannot tell'
    """
    if then is None or now is None or now.images == 0:
        return "cannot tell", "its images are not in the data any more"
    if kind == "class":
        if then.accuracy is None or now.accuracy is None:
            return "cannot tell", "its images have no labels"
        says = f"accuracy {100 * then.accuracy:.1f} % after its run, {100 * now.accuracy:.1f} % now"
        return ("came back" if now.accuracy > then.accuracy + RISEN else "still forgotten"), says
    values = [None if look is None else look.cross_entropy for look in (before, then, now)]
    if any(value is None for value in values):
        return "cannot tell", "its images have no labels"
    was, after, is_ = (float(value or 0.0) for value in values)
    says = f"cross-entropy {was:.3f} before, {after:.3f} after its run, {is_:.3f} now"
    if after < was + RAISED:
        return "cannot tell", f"{says}; forgetting hardly raised it"
    return ("came back" if (after - is_) / (after - was) > REGAINED else "still forgotten"), says
