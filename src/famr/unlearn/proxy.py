"""Predictions of proxies for a run: of the sketch's, or of one that is trained on the retained images now."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from famr.config import ResolvedFAMR
from famr.engine.base import Engine
from famr.models import Classifier
from famr.proxies.predictions import own_proxy
from famr.runs.events import ProxyStep
from famr.targets import TARGETS, ProxyPredictions
from famr.unlearn.inputs import RunInputs
from famr.unlearn.progress import Progress


def with_proxy(
    original: Classifier,
    inputs: RunInputs,
    config: ResolvedFAMR,
    engine: Engine,
    seed: int,
    progress: Progress,
    on_event: Callable[[ProxyStep], None] | None = None,
) -> tuple[RunInputs, float]:
    """The data of a run with the predictions of proxies, where its target reads them.

    Args:
        original: The model that is to forget.
        inputs: The data of the run.
        config: Its settings.
        engine: Trains a proxy.
        seed: Of its draws.
        progress: May have the predictions from an earlier process; keeps new ones.
        on_event: Called after each step of a training.

    Returns:
        The data, and the seconds that the predictions took.

    Raises:
        RequestError: No proxy can be had.
    """
    if not TARGETS[config.target].needs_proxy or inputs.proxy is not None:
        return inputs, 0.0
    start = time.perf_counter()
    found = progress.proxy()
    if found is None:
        if inputs.recipe is not None:
            inputs = replace(inputs, recipe=inputs.recipe.with_start(original))
        found = _predicted(original, inputs, config, engine, seed, on_event)
        progress.keep_proxy(found)
    return replace(inputs, proxy=found), time.perf_counter() - start


def _predicted(
    original: Classifier,
    inputs: RunInputs,
    config: ResolvedFAMR,
    engine: Engine,
    seed: int,
    on_event: Callable[[ProxyStep], None] | None,
) -> ProxyPredictions:
    splits, recipe, sketch = inputs.splits, inputs.recipe, inputs.sketch
    assert splits is not None  # `resolve` refuses the target otherwise
    if recipe is None:
        assert sketch is not None
        assert sketch.proxies is not None
        return sketch.proxies.predict(original, splits.forget, inputs.forgets_classes, engine.device)
    assert splits.retain is not None
    if config.forgets_style:  # a style is read off early layers, which the original learnt with it
        recipe = replace(recipe, late_share=1.0)
    steps = recipe.short_training.steps(len(splits.retain))
    on_step = None if on_event is None else lambda step: on_event(ProxyStep(step, steps))
    return own_proxy(
        original,
        splits.retain,
        splits.forget,
        inputs.calibration_images(),
        recipe,
        engine=engine,
        seed=seed,
        on_step=on_step,
    )
