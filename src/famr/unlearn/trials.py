"""One run of Alg. 1 with one strength, from the original's weights, and its outcome."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import NamedTuple

from famr.config import ResolvedFAMR
from famr.data import Images
from famr.metrics.forgetting import correct
from famr.unlearn.history import EvaluationClock, HistoryRow, Monitor, follow
from famr.unlearn.inputs import RunInputs
from famr.unlearn.problem import Problem
from famr.unlearn.progress import Progress
from famr.unlearn.search import TrialOutcome, require_outcome, search_strength


class TrialResult(NamedTuple):
    """The result of a run besides the network.

    Attributes:
        history: One row an evaluated epoch.
        config: The settings with which it was made, calibrated.
    """

    history: list[HistoryRow]
    config: ResolvedFAMR


class Trials:
    """Runs of Alg. 1 on one problem; what they share (target, anchors, cached activations) is built once.

    Args:
        problem: J and its data, at θ₀.
        inputs: The data of the run.
        monitor: Evaluations, gates and saved states.
        progress: The state that an earlier process left; saves new ones.
        seed: Seed of the order of the images.

    Attributes:
        clock: Time that was spent on evaluation during the runs.
    """

    def __init__(self, problem: Problem, inputs: RunInputs, monitor: Monitor, progress: Progress, seed: int) -> None:
        self._problem, self._inputs, self._monitor, self._progress = problem, inputs, monitor, progress
        self._seed, self.clock = seed, EvaluationClock()
        self._finished = iter([*progress.trials])
        watch = monitor.gates or problem.config.search
        self._watched = inputs.watched_images(problem.config.function_images, seed) if watch else None
        self._accuracy_before = self._accuracy(self._watched)
        self._at_original = True

    def run(self) -> tuple[tuple[TrialOutcome, ...], TrialResult]:
        """Make the run: once with given strengths, else until a strength forgets within the budget.

        Returns:
            The outcomes of a search, none for given strengths; and the result of the last run, whose weights the
            network has.

        Raises:
            GateError: No strength forgets within the budget, or a gate of the monitor failed.
        """
        config = self._problem.config
        if config.search:
            adjustable = bool(config.strength or config.function_strength)
            return search_strength(self._resumable_trial, config.budget, adjustable=adjustable)
        outcome, result = self._trial(1.0)
        if self._monitor.gates:
            require_outcome(outcome)
        return (), result

    def _resumable_trial(self, factor: float) -> tuple[TrialOutcome, TrialResult]:
        """A trial of a search; those that an earlier process finished are not run again."""
        finished = next(self._finished, None)
        if finished is not None:
            return TrialOutcome(**finished), TrialResult([], self._problem.config)
        outcome, result = self._trial(factor)
        self._progress.finish_trial(asdict(outcome))
        return outcome, result

    def _trial(self, factor: float) -> tuple[TrialOutcome, TrialResult]:
        if not self._at_original:
            self._problem.session.reset()
        self._at_original = False
        problem = self._problem.with_strengths(factor)
        history = follow(problem, self._seed, self._monitor, self._progress, self.clock)
        return self._outcome(problem, history), TrialResult(history, replace(problem.config, search=False))

    def _outcome(self, problem: Problem, history: list[HistoryRow]) -> TrialOutcome:
        first, last, anchor = history[0], history[-1], problem.weight_anchor
        drift = float(anchor.penalty(problem.session.parameters)) if anchor.predicts_divergence else None
        return TrialOutcome(
            strength=problem.config.strength,
            function_strength=problem.config.function_strength,
            loss_before=first.loss_forget,
            loss_after=last.loss_forget,
            forget_accuracy=last.forget_accuracy if self._inputs.forgets_classes else None,
            chance=problem.target.chance,
            retained_before=self._accuracy_before,
            retained_after=self._accuracy(self._watched),
            predicted_drift=drift,
            watched=None if self._watched is None else len(self._watched),
        )

    def _accuracy(self, images: Images | None) -> float | None:
        if images is None:
            return None
        session = self._problem.session
        predictions = session.predict(session.evaluation_batches(images))
        return float(correct(predictions.logits, predictions.targets).mean())
