"""`forget`: copy a trained classifier, run Alg. 1 on the copy, evaluate it along the way."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

from torch import nn

from famr.anchors import WeightAnchor
from famr.config import FAMR, ResolvedFAMR
from famr.data import Images
from famr.data.loaders import LabelledImages
from famr.data.splits import Splits
from famr.engine.base import Engine
from famr.engine.devices import deterministic
from famr.engine.finite import name_bad_images
from famr.engine.pick import pick_engine
from famr.metrics.forgetting import correct
from famr.models import Classifier
from famr.unlearn.history import HistoryRow, Monitor, Stopwatch, follow
from famr.unlearn.inputs import RunInputs, Source
from famr.unlearn.problem import Problem, build_problem
from famr.unlearn.progress import Progress
from famr.unlearn.resolve import resolve
from famr.unlearn.result import Unlearned
from famr.unlearn.search import Outcome, require_outcome, search_strength
from famr.unlearn.sketch import Sketch


def forget(
    model: Classifier | nn.Module,
    splits: Splits | None = None,
    method: FAMR | None = None,
    *,
    forget: Iterable[LabelledImages] | None = None,
    style_target: Source | None = None,
    anchor_images: Source | None = None,
    sketch: Sketch | None = None,
    seed: int = 0,
    device: str | None = None,
    engine: Engine | None = None,
    monitor: Monitor | None = None,
) -> Unlearned:
    """Make a copy of `model` forget; the model itself is not changed.

    Args:
        model: A classifier, or any module that returns logits.
        splits: The sets of a request; or give `forget`.
        method: The settings; None: `FAMR()`, all of them resolved by the request and the available data.
        forget: The forget set as an iterable of (images, labels) as the network takes them, read once.
        style_target: Images of a neutral style; None: the retained images.
        anchor_images: Images for anchors that need some; None: the retained images.
        sketch: What targets and anchors need of the training data, taken earlier.
        seed: Of every random draw.
        device: Where to compute; None: the device of a network on a GPU, else the best available.
        engine: How to compute; None: the fastest for the device.
        monitor: What is watched along the way; None: `Monitor()`.

    Returns:
        The unlearned classifier, the original, the resolved settings and the history.

    Raises:
        RequestError: The request, the data and the settings do not fit together.
        GateError: No strength forgets within the budget, or a gate of the monitor failed.
        NumericsError: A number stopped being finite, or memory is too small for one image.
    """
    monitor = monitor or Monitor()
    original = model if isinstance(model, Classifier) else Classifier(model)
    engine = engine or pick_engine(device, next(original.module.parameters()).device)
    with engine.together():
        inputs = RunInputs.of(original, splits, forget, style_target, anchor_images, sketch)
        config, why = resolve(method or FAMR(), inputs.available(), engine)
        identity = _identity(original, inputs, config, seed, engine)
        progress = Progress.open(monitor.resume_state, inputs.forget_ids, identity)
    settings = {"the method": config.to_json(), "the seed": seed, "the unfinished run": progress.facts()}
    engine.agree(lambda: inputs.facts(original, settings))
    step_size = None if splits is None else config.images_in_step(len(splits.forget))
    with engine.session(original, config.precision, step_size) as session:
        start, clock = time.perf_counter(), Stopwatch()
        with (
            deterministic(seed),
            name_bad_images(inputs.forget_ids),
            build_problem(session, inputs, config, seed) as problem,
        ):
            resumed = progress.resumed
            run = _Run(problem, inputs, monitor, progress, clock, seed)
            trials, (history, config) = run.search() if config.search else run.once()
        seconds_in_all = None if resumed else time.perf_counter() - start - clock.seconds
        unlearned = session.export()
    return Unlearned(
        model=unlearned,
        original=original,
        request=inputs.request,
        method=config,
        seed=seed,
        history=tuple(history),
        device=str(engine.device),
        why=why,
        trials=trials,
        classes=inputs.newly_forgotten_classes(),
        earlier=inputs.earlier,
        processes=engine.processes,
        sharded=engine.sharded,
        seconds_of_all=seconds_in_all,
    )


@dataclass
class _Run:
    """Runs of Alg. 1 on one problem, from the original's weights each time."""

    problem: Problem
    inputs: RunInputs
    monitor: Monitor
    progress: Progress
    clock: Stopwatch
    seed: int

    def __post_init__(self) -> None:
        config = self.problem.config
        watch = self.monitor.gates or config.search
        self._watched = self.inputs.watched_images(config.function_images, self.seed) if watch else None
        self._accuracy_before = self._accuracy(self._watched)
        self._at_original = True

    def once(self) -> tuple[tuple[Outcome, ...], tuple[list[HistoryRow], ResolvedFAMR]]:
        """One run with the strengths as they are."""
        outcome, result = self._run(1.0)
        if self.monitor.gates:
            require_outcome(outcome)
        return (), result

    def search(self) -> tuple[tuple[Outcome, ...], tuple[list[HistoryRow], ResolvedFAMR]]:
        """Runs until a strength forgets within the budget; trials of an earlier process are not run again."""
        config, finished = self.problem.config, [Outcome(**trial) for trial in self.progress.trials]

        def trial(factor: float) -> tuple[Outcome, tuple[list[HistoryRow], ResolvedFAMR]]:
            if finished:
                return finished.pop(0), ([], config)
            outcome, result = self._run(factor)
            self.progress.finish_trial(asdict(outcome))
            return outcome, result

        return search_strength(trial, config.budget, adjustable=bool(config.strength or config.function_strength))

    def _run(self, factor: float) -> tuple[Outcome, tuple[list[HistoryRow], ResolvedFAMR]]:
        if not self._at_original:
            self.problem.session.reset()
        self._at_original = False
        config = self.problem.config
        problem = self.problem.with_strengths(factor * config.strength, factor * config.function_strength)
        history = follow(problem, self.seed, self.monitor, self.progress, self.clock)
        return self._outcome(problem, history), (history, replace(problem.config, search=False))

    def _outcome(self, problem: Problem, history: list[HistoryRow]) -> Outcome:
        first, last, config, anchor = history[0], history[-1], problem.config, problem.anchors[0].anchor
        predicts = isinstance(anchor, WeightAnchor) and anchor.predicts_divergence
        return Outcome(
            strength=config.strength,
            function_strength=config.function_strength,
            loss_before=first.loss_forget,
            loss_after=last.loss_forget,
            forget_accuracy=last.forget_accuracy if self.inputs.forgets_classes else None,
            chance=1 / problem.objective.target.shape[-1] if config.target == "uniform" else 0.0,
            retained_before=self._accuracy_before,
            retained_after=self._accuracy(self._watched),
            predicted_drift=float(anchor.penalty(problem.session.parameters)) if predicts else None,
            watched=None if self._watched is None else len(self._watched),
        )

    def _accuracy(self, images: Images | None) -> float | None:
        if images is None:
            return None
        session = self.problem.session
        predictions = session.predict(session.evaluation_batches(images))
        return float(correct(predictions.logits, predictions.targets).mean())


def _identity(
    original: Classifier, inputs: RunInputs, config: ResolvedFAMR, seed: int, engine: Engine
) -> dict[str, object]:
    """What the state of an unfinished run belongs to."""
    return {
        "original": original.digest(),
        "request": inputs.request.to_json(),
        "method": {**config.to_json(), "search": config.search},
        "seed": seed,
        "device": engine.device.type,
        "processes": engine.processes,
    }
