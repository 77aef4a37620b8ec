"""The history of a run: epochs of Alg. 1, and evaluations between them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import NamedTuple

from famr.engine.distributed import as_float
from famr.errors import NumericsError, RequestError
from famr.losses.objective import l2_penalty
from famr.metrics.predictions import Predictions
from famr.metrics.scores import score
from famr.runs.events import Plan, ProxyStep, Step
from famr.runs.resume import ResumeState
from famr.unlearn.loop import Epoch, minimise
from famr.unlearn.objective import Measured
from famr.unlearn.problem import Problem
from famr.unlearn.progress import Progress

ROWS = 50
"""About the most rows of a history; of more epochs some are evaluated, evenly spaced."""


@dataclass(frozen=True)
class HistoryRow:
    """Evaluation after an epoch; row 0 is before the first step. Losses are over the whole forget set.

    Attributes:
        epoch: Passes over the forget set so far.
        step: Steps so far.
        loss_forget: L_forget [FAMR, Eq. (5)].
        loss_anchor: Σ λ·A(θ, θ₀).
        loss_total: J, their sum.
        drift: ‖θ − θ₀‖.
        retain_accuracy: On held-out images that are not forgotten; None where it is not tracked.
        forget_accuracy: On the forget set; None without labels.
        forget_cross_entropy: With the true labels; None without them.
        forget_entropy: Mean entropy of the predictions, in nats.
        forget_kl: Mean KL of the predictions from the original's, in nats.
        style_distance: Mean ‖G − G_target‖² [FAMR, Eq. (4)]; None where no style is forgotten.
        seconds: Time spent in steps so far; evaluation is not counted.
    """

    epoch: int
    step: int
    loss_forget: float
    loss_anchor: float
    loss_total: float
    drift: float
    retain_accuracy: float | None
    forget_accuracy: float | None
    forget_cross_entropy: float | None
    forget_entropy: float
    forget_kl: float
    style_distance: float | None
    seconds: float


Event = Plan | ProxyStep | Step | HistoryRow


@dataclass(frozen=True)
class Monitor:
    """Evaluations, gates, events and saved states of a run.

    Attributes:
        track_retain: Whether retained accuracy is evaluated after each epoch, on at most 2,000 held-out images.
        rows: About so many epochs are evaluated, the first and the last among them; 1: only the last.
        gates: Whether a run that forgot next to nothing or destroyed the model is a GateError. A search for the
            strength that finds none within the budget always is.
        on_event: Called with the `Plan` of the run, then with each `ProxyStep`, each `Step` and each `HistoryRow`.
        resume_state: Saves the state of the run, and resumes it where an earlier process left a state; None: neither.
    """

    track_retain: bool = True
    rows: int = ROWS
    gates: bool = False
    on_event: Callable[[Event], None] | None = None
    resume_state: ResumeState | None = None

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise RequestError(f"`rows` must be at least 1, got {self.rows!r}.", where="famr.Monitor")

    def evaluates(self, epoch: int, epochs: int) -> bool:
        """Whether an epoch gets a row.

        Args:
            epoch: Its number, from 1.
            epochs: Epochs of the run.
        """
        ends = (1, epochs) if self.rows > 1 else (epochs,)
        return epoch % -(-epochs // self.rows) == 0 or epoch in ends


@dataclass
class EvaluationClock:
    """Time spent on evaluation, which does not count as the method's.

    Attributes:
        seconds: So far.
    """

    seconds: float = 0.0

    @contextmanager
    def evaluating(self, problem: Problem) -> Iterator[None]:
        """Count the time of a block, without what it computes for the steps (the prefix cache).

        Args:
            problem: Its session measures that.
        """
        start = time.perf_counter() - problem.session.setup_seconds
        yield
        self.seconds += time.perf_counter() - problem.session.setup_seconds - start


class FollowedRun(NamedTuple):
    """A run of Alg. 1 as it was evaluated.

    Attributes:
        rows: One an evaluated epoch.
        before: Predictions and losses of the original on the forget set.
        after: The same at the end.
    """

    rows: list[HistoryRow]
    before: Measured
    after: Measured


def follow(problem: Problem, seed: int, monitor: Monitor, progress: Progress, clock: EvaluationClock) -> FollowedRun:
    """Run Alg. 1 and evaluate it along the way; a resumed run keeps the rows it had.

    Args:
        problem: J and its data, at θ₀.
        seed: Seed of the order of the images.
        monitor: Says which epochs are evaluated, and on what.
        progress: The state that an earlier process left; saves new ones.
        clock: Counts the time of evaluation.

    Raises:
        NumericsError: A loss, a weight or a prediction is not finite.
    """

    def measured() -> Measured:
        with clock.evaluating(problem):
            return problem.objective.measure(problem.forget(None))

    before, after = measured(), None

    def evaluated(epoch: Epoch, now: Measured) -> HistoryRow:
        with clock.evaluating(problem):
            row = _row(problem, epoch, before.predictions, now, monitor.track_retain)
        if monitor.on_event is not None:
            monitor.on_event(row)
        return row

    start, rows = progress.position()
    if start is None:
        start = Epoch(epoch=0, steps=0, seconds=problem.session.setup_seconds)
    history = [HistoryRow(**row) for row in rows] or [evaluated(start, before)]
    for epoch in minimise(problem, seed, start, monitor.on_event):
        if monitor.evaluates(epoch.epoch, problem.config.epochs):
            after = measured()
            history.append(evaluated(epoch, after))
        progress.keep(epoch, history)
    return FollowedRun(history, before, after or measured())  # resumed after the last epoch: measured here


def _row(problem: Problem, epoch: Epoch, original: Predictions, measured: Measured, track_retain: bool) -> HistoryRow:
    predictions, kl, style = measured
    scores = score(predictions, original, problem.predict_held_out() if track_retain else None, None)
    parameters = problem.session.parameters
    forget_loss = float(problem.objective.combined(kl, style))
    anchor_loss = sum(strength * as_float(anchor.penalty(parameters)) for anchor, strength in problem.anchors)
    row = HistoryRow(
        epoch=epoch.epoch,
        step=epoch.steps,
        loss_forget=forget_loss,
        loss_anchor=anchor_loss,
        loss_total=forget_loss + anchor_loss,
        drift=as_float(2 * l2_penalty(parameters, problem.original)) ** 0.5,  # ‖θ − θ₀‖
        retain_accuracy=scores.retain_accuracy,
        forget_accuracy=scores.forget_accuracy,
        forget_cross_entropy=scores.forget_cross_entropy,
        forget_entropy=scores.forget_entropy,
        forget_kl=float(scores.forget_kl or 0.0),
        style_distance=None if style is None else float(style.mean()),
        seconds=epoch.seconds,
    )
    if bad := [name for name, value in asdict(row).items() if value is not None and not math.isfinite(value)]:
        raise NumericsError(
            f"The model's predictions are not finite numbers: {', '.join(bad)}.",
            where=f"after epoch {row.epoch}" if row.epoch else "before the first step",
            fix="Lower the learning rate. Nothing was written; the original is unchanged.",
        )
    return row
