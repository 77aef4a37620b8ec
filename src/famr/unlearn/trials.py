"""One run of Alg. 1 with one strength, from the original's weights, and its outcome."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import NamedTuple

from torch import Tensor

from famr.config import ResolvedFAMR
from famr.errors import GateError
from famr.metrics.forgetting import correct
from famr.targets.margins import margins
from famr.unlearn.criteria import Forgetting, class_forgetting, distance_forgetting, sample_forgetting
from famr.unlearn.history import EvaluationClock, FollowedRun, HistoryRow, Monitor, follow
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
        self._correct_before = self._correct()
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
            try:
                return search_strength(self._resumable_trial, config.budget, adjustable=adjustable)
            except GateError:
                self._progress.discard()  # the run that the error advises is another one
                raise
        outcome, result = self._trial(1.0)
        if self._monitor.gates:
            require_outcome(outcome)
        return (), result

    def _resumable_trial(self, factor: float) -> tuple[TrialOutcome, TrialResult]:
        """A trial of a search; those that an earlier process finished are not run again."""
        finished = next(self._finished, None)
        if finished is not None:
            return TrialOutcome.from_json(finished), TrialResult([], self._problem.config)
        outcome, result = self._trial(factor)
        self._progress.finish_trial(asdict(outcome))
        return outcome, result

    def _trial(self, factor: float) -> tuple[TrialOutcome, TrialResult]:
        if not self._at_original:
            self._problem.session.reset()
        self._at_original = False
        problem = self._problem.with_strengths(factor)
        run = follow(problem, self._seed, self._monitor, self._progress, self.clock)
        return self._outcome(problem, run), TrialResult(run.rows, replace(problem.config, search=False))

    def _outcome(self, problem: Problem, run: FollowedRun) -> TrialOutcome:
        first, last, anchor = run.rows[0], run.rows[-1], problem.weight_anchor
        drift = float(anchor.penalty(problem.session.parameters)) if anchor.predicts_divergence else None
        before, after = self._correct_before, self._correct()
        lost = gained = None
        if before is not None and after is not None:
            lost, gained = int((before > after).sum()), int((before < after).sum())
        return TrialOutcome(
            strength=problem.config.strength,
            function_strength=problem.config.function_strength,
            loss_before=first.loss_forget,
            loss_after=last.loss_forget,
            forget_accuracy=last.forget_accuracy if self._inputs.forgets_classes else None,
            chance=problem.target.chance,
            forgetting=self._forgetting(problem, run),
            retained_before=None if before is None else float(before.mean()),
            retained_after=None if after is None else float(after.mean()),
            predicted_drift=drift,
            watched=None if before is None else len(before),
            lost_images=lost,
            gained_images=gained,
        )

    def _forgetting(self, problem: Problem, run: FollowedRun) -> Forgetting:
        """How much was forgotten, by the criterion of this kind of request."""
        before, after, accuracy = run.before, run.after, run.rows[-1].forget_accuracy
        if self._inputs.forgets_classes and accuracy is not None:
            return class_forgetting(accuracy, problem.target.chance)
        kl = float(before.kl.mean()), float(after.kl.mean())
        if before.style is not None and after.style is not None:
            gram = float(before.style.mean()), float(after.style.mean())
            return distance_forgetting(kl if problem.config.alpha else None, gram)
        if not before.predictions.labelled:
            return distance_forgetting(kl)
        labels = before.predictions.targets
        original, unlearned = (margins(measured.predictions.logits, labels).mean() for measured in (before, after))
        target = problem.target.true_class_margins(labels).mean()
        return sample_forgetting(float(original), float(unlearned), float(target), kl)

    def _correct(self) -> Tensor | None:
        """Whether each watched image is classified correctly; None without any."""
        if self._watched is None:
            return None
        session = self._problem.session
        predictions = session.predict(session.evaluation_batches(self._watched))
        return correct(predictions.logits, predictions.targets)
