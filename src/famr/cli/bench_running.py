"""`famr bench methods`, between parsing and printing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from famr.bench.methods import ALL_METHODS, methods_by_name
from famr.bench.plan import Bench
from famr.bench.running import run_bench
from famr.bench.setup import SCRATCH, BenchSetup
from famr.bench.tables import KINDS, cell_kind, ranking_summary
from famr.bench.tasks import request_task, requested_tasks, tuning_tasks
from famr.cli.printing import say
from famr.cli.shadow_models import recorded_training
from famr.data import Data
from famr.data.request import Request
from famr.engine.distributed import ALONE, Ranks
from famr.errors import RequestError
from famr.models import Classifier, load_model
from famr.models.labels import match_labels
from famr.report.escaping import visible


@dataclass(frozen=True)
class MethodsOptions:
    """What is compared, and how.

    Attributes:
        start: What training starts from; None is refused.
        model: A run folder with the original; None: an original is trained for each seed.
        match_labels_by_name: Whether the model may have the data's classes in another order.
        classes: Class names to forget, a request each.
        random_classes: Classes drawn in addition.
        concepts: (column, value) pairs.
        shares: Shares of the training images.
        methods: Names, or `all`.
        seeds: One original each.
        trials: Runs a method may use for tuning.
        tune_on: A class to tune on; None: drawn from the remaining ones.
        tuning_seed: Of the original to tune on; None: the first seed.
        leave_out_unserved: Whether a named method that cannot serve a request is listed as such instead of refused.
        shards: Of the ensemble that SISA needs.
        most_epochs: Limit on the epochs over retained images.
        device: Name of the device.
        precision: fp32, bf16 or None.
        retry_failed: Whether failed cells are run again.
        quiet: Whether there are no lines of progress.
    """

    start: str | None
    model: str | None
    match_labels_by_name: bool
    classes: Sequence[str]
    random_classes: int
    concepts: Sequence[tuple[str, str]]
    shares: Sequence[float]
    methods: Sequence[str]
    seeds: tuple[int, ...]
    trials: int
    tune_on: str | None
    tuning_seed: int | None
    leave_out_unserved: bool
    shards: int
    most_epochs: int | None
    device: str
    precision: str | None
    retry_failed: bool
    quiet: bool


def run_methods(setup: BenchSetup, options: MethodsOptions, output: Path, ranks: Ranks = ALONE) -> dict[str, Any]:
    """Run a bench of methods in its folder.

    Args:
        setup: Data, starting weights and training.
        options: What is compared.
        output: The folder; cells that it holds are not run again.
        ranks: The processes that share the work.

    Returns:
        Counts of cells, and which method is best, a sentence for each kind of request.

    Raises:
        RequestError: An option is missing or wrong, or a method cannot serve a request.
    """
    methods = methods_by_name(options.methods)
    data, original = setup.open_data(), None
    training = setup.training_on(data)
    if options.model is not None:
        original, data = match_labels(load_model(options.model), data, by_name=options.match_labels_by_name)
        training = recorded_training(Path(options.model))
    if options.start is None:
        raise RequestError(
            "Retrained models start where the original's training started, which must be named.",
            where="--start",
            fix=f"--start timm:NAME (with --weights or --from-scratch); {SCRATCH} where --model was trained so.",
        )
    tasks = requested_tasks(data, options.classes, options.random_classes, options.concepts, options.shares)
    tuning = tuning_tasks(data, tasks) if options.trials > 1 else ()
    if options.tune_on is not None:
        named = request_task(Request(classes=[options.tune_on]))
        tuning = tuple(named if task.request.kind == "class" else task for task in tuning)
    bench = Bench(
        data=data,
        start=_start(setup, options.start, original, data),
        training=training,
        methods=methods,
        tasks=tasks,
        seeds=options.seeds,
        tuning=tuning,
        trials=options.trials,
        tuning_seed=options.seeds[0] if options.tuning_seed is None else options.tuning_seed,
        original=original,
        description={"data": setup.describe_data(), "model": setup.describe_start(options.start)},
        leave_out_unserved=options.leave_out_unserved or ALL_METHODS in options.methods,
        retry_failed=options.retry_failed,
        shards=options.shards,
        device=options.device,
        precision=options.precision,  # type: ignore[arg-type]  # checked by Bench
        most_epochs=options.most_epochs,
    )
    content = run_bench(bench, output, (lambda _line: None) if options.quiet else say, ranks)
    cells = content["cells"]
    by_kind = {title: [c for c in cells if cell_kind(c, content) == kind] for kind, title in KINDS.items()}
    return {
        "output": str(output),
        "cells": len(cells),
        "failed": sum("error" in cell for cell in cells),
        "first": [visible(f"{title}: {ranking_summary(of_kind)}") for title, of_kind in by_kind.items() if of_kind],
    }


def _start(setup: BenchSetup, spec: str, original: Classifier | None, data: Data) -> Callable[[int], Classifier]:
    if spec != SCRATCH:
        return setup.start_from(spec, data.labels)
    if original is None:
        raise RequestError(
            "From scratch needs an architecture.", where="--start", fix="--start timm:NAME --from-scratch"
        )
    from famr.baselines.untrained import untrained

    return lambda seed: untrained(original, seed)
