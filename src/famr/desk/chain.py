"""The cost of a chain of runs, and the budget after which the model should be retrained."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from famr.errors import CheckpointError, RequestError


@dataclass(frozen=True)
class Budget:
    """What a chain of runs may cost before the model should be retrained; None sets no limit.

    Attributes:
        retained_loss: Held-out retained accuracy that all runs together may lose, as a fraction.
        drift: How far all runs together may move the weights, in the Euclidean norm.

    Raises:
        RequestError: A limit is not a finite number above 0.
    """

    retained_loss: float | None = 0.02
    drift: float | None = None

    def __post_init__(self) -> None:
        for name in ("retained_loss", "drift"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise RequestError(f"A budget is a number above 0, got {value!r}.", where=name)


@dataclass(frozen=True)
class RunCost:
    """The cost of one run of the chain.

    Attributes:
        name: Name of the run folder.
        drift: Euclidean distance from the weights it started from to those it wrote.
        retained_before: Held-out retained accuracy of the model it started from; None where it was not measured.
        retained_after: Held-out retained accuracy of the model it wrote; None where it was not measured.
    """

    name: str
    drift: float
    retained_before: float | None
    retained_after: float | None

    @property
    def retained_loss(self) -> float | None:
        """Held-out retained accuracy that the run lost; None where it was not measured."""
        if self.retained_before is None or self.retained_after is None:
            return None
        return self.retained_before - self.retained_after


def read_run_cost(folder: Path) -> RunCost:
    """The cost of a run, from the records in its folder.

    Args:
        folder: The run folder.

    Raises:
        CheckpointError: The records are missing or damaged.
    """
    metrics_file = folder / "unlearning/metrics.json"
    try:
        run = json.loads((folder / "unlearning/run.json").read_text(encoding="utf-8"))
        metrics = json.loads(metrics_file.read_text(encoding="utf-8")) if metrics_file.is_file() else {}
        before, after = ((metrics.get(name) or {}).get("retain_accuracy") for name in ("original", "unlearned"))
        return RunCost(folder.name, run["drift"], before, after)
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(
            "A run of the chain is missing or damaged.", where=str(folder), fix="Restore it from a copy."
        ) from error


@dataclass(frozen=True)
class ChainCost:
    """The summed cost of a chain.

    Attributes:
        runs: Number of runs.
        drift: Sum of their drifts, an upper bound on the distance from the first model (triangle inequality).
        retained_loss: Sum over the runs that measured it, each on its own held-out images.
        unmeasured: Number of runs that did not measure it.
    """

    runs: int
    drift: float
    retained_loss: float
    unmeasured: int


def total_cost(runs: Iterable[RunCost]) -> ChainCost:
    """Sum the costs of a chain.

    Args:
        runs: The runs of the chain.

    >>> total_cost([RunCost("a", 2.0, 0.98, 0.97), RunCost("b", 1.0, 0.97, 0.975), RunCost("c", 1.0, None, None)])
    ChainCost(runs=3, drift=4.0, retained_loss=0.005, unmeasured=1)
    """
    runs = list(runs)
    losses = [run.retained_loss for run in runs]
    known = [loss for loss in losses if loss is not None]
    return ChainCost(len(runs), sum(run.drift for run in runs), round(sum(known), 12) + 0.0, len(losses) - len(known))


def is_spent(cost: ChainCost, budget: Budget) -> bool:
    """Whether a limit of the budget is reached.

    Args:
        cost: Cost of the chain.
        budget: Its limits.

    >>> is_spent(ChainCost(1, 9.0, 0.02, 0), Budget()), is_spent(ChainCost(1, 9.0, 0.01, 0), Budget())
    (True, False)
    """
    loss = budget.retained_loss is not None and cost.retained_loss >= budget.retained_loss
    return loss or (budget.drift is not None and cost.drift >= budget.drift)


def describe_cost(cost: ChainCost, budget: Budget) -> str:
    """The cost of a chain against its budget, in one sentence.

    Args:
        cost: Cost of the chain.
        budget: Its limits.

    >>> describe_cost(ChainCost(2, 3.25, 0.004, 0), Budget())
    'Chain of 2 runs: drift at most 3.25, retained accuracy lost 0.40 of 2.00 points; within budget.'
    >>> describe_cost(ChainCost(1, 1.0, -0.0031, 0), Budget())
    'Chain of 1 run: drift at most 1, retained accuracy gained 0.31 points (2.00 may be lost); within budget.'
    >>> describe_cost(ChainCost(1, 5.0, 0.0, 1), Budget(drift=4.0))[-46:]
    'measure it); retrain now, the budget is spent.'
    """
    drift = f"{cost.drift:.4g}" + ("" if budget.drift is None else f" of {budget.drift:g}")
    unmeasured = f" ({cost.unmeasured} runs did not measure it)" if cost.unmeasured else ""
    verdict = "retrain now, the budget is spent" if is_spent(cost, budget) else "within budget"
    runs = f"Chain of {cost.runs} run{'' if cost.runs == 1 else 's'}"
    return f"{runs}: drift at most {drift}, retained accuracy {_describe_loss(cost, budget)}{unmeasured}; {verdict}."


def _describe_loss(cost: ChainCost, budget: Budget) -> str:
    points, limit = 100 * cost.retained_loss, budget.retained_loss
    if points < 0:
        return f"gained {-points:.2f} points{'' if limit is None else f' ({100 * limit:.2f} may be lost)'}"
    return f"lost {points:.2f}{'' if limit is None else f' of {100 * limit:.2f}'} points"
