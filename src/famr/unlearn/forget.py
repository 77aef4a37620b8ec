"""`forget`: copy a trained classifier, run Alg. 1 on the copy, evaluate it along the way."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from torch import nn

from famr.anchors import Source
from famr.config import FAMR, ResolvedFAMR
from famr.data.loaders import LabelledImages
from famr.data.splits import Splits
from famr.engine.base import Engine
from famr.engine.devices import deterministic
from famr.engine.finite import name_bad_images
from famr.engine.pick import pick_engine
from famr.models import Classifier
from famr.proxies.recipe import ProxyRecipe
from famr.runs.events import Plan
from famr.targets import TARGETS
from famr.unlearn.history import Monitor
from famr.unlearn.inputs import RunInputs
from famr.unlearn.problem import build_problem
from famr.unlearn.progress import Progress
from famr.unlearn.resolve import resolve
from famr.unlearn.result import Unlearned
from famr.unlearn.sketch import Sketch
from famr.unlearn.trials import Trials


def forget(
    model: Classifier | nn.Module,
    splits: Splits | None = None,
    method: FAMR | None = None,
    *,
    forget: Iterable[LabelledImages] | None = None,
    style_target: Source | None = None,
    anchor_images: Source | None = None,
    sketch: Sketch | None = None,
    recipe: ProxyRecipe | None = None,
    seed: int = 0,
    device: str | None = None,
    engine: Engine | None = None,
    monitor: Monitor | None = None,
) -> Unlearned:
    """Make a copy of `model` forget; the model itself is not changed.

    Args:
        model: A classifier, or any module that returns logits.
        splits: The sets of a request; or give `forget`. Its held-out images set temperatures and ranks, and must not
            be scored afterwards: give the first half of `famr.calibration_split`, and score on the second.
        method: The settings; None: `FAMR()`, all of them resolved by the request and the available data.
        forget: The forget set as an iterable of (images, labels) as the network takes them, read once.
        style_target: Images of a neutral style; None: the retained images.
        anchor_images: Images for anchors that need some; None: the retained images.
        sketch: Statistics of the training data that targets and anchors can use in its place; None: none.
        recipe: How the model was trained, for a proxy that is trained alike; None: as its folder records.
        seed: Seed of every random draw.
        device: Name of the device; None: that of a network on a GPU, else the best available.
        engine: Engine that computes the run; None: the fastest for the device.
        monitor: Evaluations, gates and saved states of the run; None: `Monitor()`.

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
    with engine.fail_together():  # an error in one process is an error in all
        inputs = RunInputs.of(original, splits, forget, style_target, anchor_images, sketch, recipe)
        config, why = resolve(method or FAMR(), inputs.available(), engine)
        identity = partial(_identity, original, inputs, config, seed, engine)
        progress = Progress.open(monitor.resume_state, inputs.forget_ids, identity)
    settings = {"the method": config.to_json(), "the seed": seed, "the unfinished run": progress.facts()}
    engine.agree(lambda: inputs.facts(original, settings))
    if monitor.on_event is not None:
        monitor.on_event(Plan(why, config.epochs * inputs.available().steps(config.batch_size)))
    inputs, proxy_seconds = _with_proxy(original, inputs, config, engine, seed, progress, monitor)
    with engine.session(original, config.precision, inputs.step_size(config)) as session:
        start = time.perf_counter()
        with (
            deterministic(seed),
            name_bad_images(inputs.forget_ids),
            build_problem(session, inputs, config, seed) as problem,
        ):
            trials = Trials(problem, inputs, monitor, progress, seed)
            outcomes, (history, config) = trials.run()
        seconds = proxy_seconds + time.perf_counter() - start - trials.clock.seconds
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
        trials=outcomes,
        classes=inputs.newly_forgotten_classes(),
        earlier=inputs.earlier,
        processes=engine.processes,
        sharded=engine.sharded,
        seconds_of_all=None if progress.resumed else seconds,
        calibration=inputs.calibration,
        proxy=inputs.proxy,
        proxy_source=None if inputs.proxy is None else inputs.source.to_json(),
    )


def _with_proxy(
    original: Classifier,
    inputs: RunInputs,
    config: ResolvedFAMR,
    engine: Engine,
    seed: int,
    progress: Progress,
    monitor: Monitor,
) -> tuple[RunInputs, float]:
    """The data of a run with the predictions of proxies, where its target reads them; and the seconds these took."""
    if not TARGETS[config.target].needs_proxy or inputs.splits is None:
        return inputs, 0.0
    start = time.perf_counter()
    inputs, found = replace(inputs, source=inputs.source.with_start(original)), progress.proxy()
    if found is None:
        assert inputs.splits is not None
        sets = (inputs.splits, inputs.calibration_images(), inputs.forgets_classes)
        found = inputs.source.predict(original, *sets, engine, seed, monitor.on_event)
        progress.keep_proxy(found)
    return replace(inputs, proxy=found), time.perf_counter() - start


def _identity(
    original: Classifier, inputs: RunInputs, config: ResolvedFAMR, seed: int, engine: Engine
) -> dict[str, object]:
    """The facts that identify an unfinished run."""
    return {
        "original": original.digest(),
        "request": inputs.request.to_json(),
        "method": {**config.to_json(), "search": config.search},
        "seed": seed,
        "proxies": inputs.source.to_json() if TARGETS[config.target].needs_proxy else None,
        "calibration": inputs.calibration,
        "device": engine.device.type,
        "processes": engine.processes,
    }
