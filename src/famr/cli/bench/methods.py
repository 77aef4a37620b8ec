"""`famr bench methods`: methods compared with each other and with retrained models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from famr.bench.columns import cell_kind
from famr.bench.methods import ALL_METHODS, methods_by_name
from famr.bench.plan import Bench
from famr.bench.running import run_bench
from famr.bench.setup import SCRATCH, BenchSetup
from famr.bench.tables import KINDS, ranking_summary
from famr.bench.tasks import Task, request_task, requested_tasks, tuning_tasks
from famr.cli.flags import Fields
from famr.cli.options import (
    AlwaysResumes,
    ByName,
    DataOptions,
    Device,
    ModelArg,
    Processes,
    Quiet,
    Weights,
    column_and_value,
    model_arguments,
)
from famr.cli.printing import Result, say
from famr.data import Data
from famr.data.request import Request
from famr.engine.devices import Precision
from famr.engine.launch import process_group
from famr.errors import RequestError
from famr.models import Classifier, load_model
from famr.models.labels import match_labels
from famr.report.escaping import visible
from famr.training import Training
from famr.training.recorded import recorded_training


@dataclass(frozen=True, kw_only=True)
class OriginalOptions:
    """The models that are to forget.

    Attributes:
        model: A run folder of `famr train`: the original, for one seed. None: one is trained for each seed.
        start: What training starts from: timm:NAME, hf:ID-or-folder, torchvision:NAME, or scratch with --model.
        weights: Weights of that start.
        model_arg: Arguments of its constructor.
        from_scratch: Draw every weight at random.
        match_labels_by_name: Accept the same class names in another order.
    """

    model: str | None = None
    start: str | None = None
    weights: Weights = None
    model_arg: ModelArg = None
    from_scratch: Annotated[bool, typer.Option("--from-scratch")] = False
    match_labels_by_name: ByName = False


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """What is forgotten, a request each.

    Attributes:
        class_: A class, by name.
        random_classes: So many classes in addition, drawn at random.
        concept: Images with this value.
        samples_share: A share of the training images, drawn at random.
    """

    class_: Annotated[list[str] | None, typer.Option("--class", help="A class, by name. Repeatable.")] = None
    random_classes: int = 0
    concept: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN=VALUE", help="Images with this value. Repeatable.")
    ] = None
    samples_share: list[float] | None = None

    def tasks(self, data: Data) -> tuple[Task, ...]:
        """The requests.

        Args:
            data: The training data.

        Raises:
            RequestError: Nothing is to be forgotten, or there is too little to draw from.
        """
        concepts = [column_and_value(pair, "--concept") for pair in self.concept or []]
        return requested_tasks(data, self.class_ or [], self.random_classes, concepts, self.samples_share or [])


@dataclass(frozen=True, kw_only=True)
class ComparisonOptions:
    """What is compared, and how.

    Attributes:
        methods: Methods, separated by commas; all: every method that can serve the request.
        seeds: Seeds, separated by commas; an original each.
        trials: Variants of its numbers that a method may try on each tuning request; 1: its default numbers.
        tune_on: A class to tune on, repeatable. None: three, drawn from the remaining ones.
        tuning_seed: Seed of the original to tune on. None: the first seed.
        leave_out_unserved: List a named method that cannot serve a request as such, instead of refusing it.
        shards: Shards of the ensemble that SISA needs.
        seconds: Limit on the seconds of every method but retraining, SISA and FAMR. None: the longest that FAMR takes
            on the tuning requests.
        precision: Precision of methods and of scoring. None: bf16 on CUDA, fp32 elsewhere.
        retry_failed: Run failed cells again.
    """

    methods: str = ALL_METHODS
    seeds: str = "0"
    trials: int = 6
    tune_on: Annotated[list[str] | None, typer.Option(help="A class to tune on. Repeatable.")] = None
    tuning_seed: int | None = None
    leave_out_unserved: Annotated[bool, typer.Option("--leave-out-unserved")] = False
    shards: int = 5
    seconds: float | None = None
    precision: Precision | None = None
    retry_failed: Annotated[bool, typer.Option("--retry-failed")] = False

    @property
    def names(self) -> list[str]:
        """Names of the methods."""
        return [name.strip() for name in self.methods.split(",") if name.strip()]

    def seed_numbers(self) -> tuple[int, ...]:
        """The seeds.

        Raises:
            RequestError: They are not whole numbers.
        """
        try:
            return tuple(int(part) for part in self.seeds.split(","))
        except ValueError as error:
            message = f"--seeds takes whole numbers with commas, got {self.seeds!r}."
            raise RequestError(message, fix="--seeds 0,1,2") from error

    def tuning_tasks(self, data: Data, tasks: tuple[Task, ...]) -> tuple[Task, ...]:
        """The requests on which methods are tuned.

        Args:
            data: The training data.
            tasks: The requests that are scored.
        """
        if self.trials <= 1:
            return ()
        drawn = tuning_tasks(data, tasks)
        if self.tune_on is None:
            return drawn
        named = [request_task(Request(classes=[name])) for name in self.tune_on]
        samples = [task for task in drawn if task.tuning_kind == "samples"]
        return (*samples,) if len(samples) == len(drawn) else (*named, *samples)


def methods_command(
    *,
    data: DataOptions,
    output: Annotated[Path, typer.Option("--output", "-o")],
    data_name: str | None = None,
    original: OriginalOptions,
    forget: TaskOptions,
    comparison: ComparisonOptions,
    training: Annotated[Training, Fields(Training, skip=("augmentation", "precision"))],
    augment: bool = True,
    processes: Processes = None,
    resume: AlwaysResumes = False,  # noqa: ARG001  # finished cells are in the folder in any case
    device: Device = "auto",
    quiet: Quiet = False,
) -> Result | None:
    """Compare methods × requests × seeds, each method tuned on other requests, with retrained models.

    A bench that was stopped is simply started again: cells that are in its folder are not run again.

    Args:
        data: The images.
        output: The folder of the bench.
        data_name: What the tables call the data. None: its kind and the last part of its path.
        original: The models that are to forget.
        forget: What is forgotten.
        comparison: What is compared.
        training: How originals and retrained models are trained.
        augment: Whether training sees random crops, and mirror images where the classes allow them.
        processes: Processes that must have been started.
        resume: It always resumes.
        device: Where to compute.
        quiet: Whether there are no lines of progress.

    Returns:
        None on all ranks but the first.
    """
    setup = BenchSetup(
        data_spec=data.data,
        data_name=data_name,
        data_root=data.data_root,
        label_column=data.label_column,
        split_seed=data.split_seed,
        weights=original.weights,
        arguments=model_arguments(original.model_arg),
        from_scratch=original.from_scratch,
        training=training if augment else replace(training, augmentation=None),
    )
    with process_group(processes, device=device) as ranks:
        bench = build_bench(setup, original, forget, comparison, device)
        content = run_bench(bench, output, (lambda _line: None) if quiet or not ranks.first else say, ranks)
    return bench_result(content, output) if ranks.first else None


def build_bench(
    setup: BenchSetup, original: OriginalOptions, forget: TaskOptions, comparison: ComparisonOptions, device: str
) -> Bench:
    """Open the data and the models of a bench.

    Args:
        setup: Data, starting weights and training.
        original: The models that are to forget.
        forget: What is forgotten.
        comparison: What is compared.
        device: Where to compute.

    Raises:
        RequestError: An option is missing or wrong.
    """
    methods, data, model = methods_by_name(comparison.names), setup.open_data(), None
    training = setup.training_on(data)
    if original.model is not None:
        model, data = match_labels(load_model(original.model), data, by_name=original.match_labels_by_name)
        training = recorded_training(Path(original.model))
    if original.start is None:
        raise RequestError(
            "Retrained models start where the original's training started, which must be named.",
            where="--start",
            fix=f"--start timm:NAME (with --weights or --from-scratch); {SCRATCH} where --model was trained so.",
        )
    tasks, seeds = forget.tasks(data), comparison.seed_numbers()
    return Bench(
        data=data,
        start=_start(setup, original.start, model, data),
        training=training,
        methods=methods,
        tasks=tasks,
        seeds=seeds,
        tuning=comparison.tuning_tasks(data, tasks),
        trials=comparison.trials,
        tuning_seed=seeds[0] if comparison.tuning_seed is None else comparison.tuning_seed,
        original=model,
        description={"data": setup.describe_data(), "model": setup.describe_start(original.start)},
        leave_out_unserved=comparison.leave_out_unserved or ALL_METHODS in comparison.names,
        retry_failed=comparison.retry_failed,
        shards=comparison.shards,
        device=device,
        precision=comparison.precision,
        seconds=comparison.seconds,
        fine_tuned=original.start != SCRATCH and not setup.from_scratch,
    )


def _start(setup: BenchSetup, spec: str, original: Classifier | None, data: Data) -> Callable[[int], Classifier]:
    if spec != SCRATCH:
        return setup.start_from(spec, data.labels)
    if original is None:
        raise RequestError(
            "From scratch needs an architecture.", where="--start", fix="--start timm:NAME --from-scratch"
        )
    from famr.baselines.untrained import untrained

    return lambda seed: untrained(original, seed)


def bench_result(content: dict[str, Any], output: Path) -> Result:
    """Counts of cells, and which method is best, a sentence for each kind of request.

    Args:
        content: As in results.json.
        output: The folder of the bench.
    """
    cells = content["cells"]
    failed = sum("error" in cell for cell in cells)
    by_kind = {title: [c for c in cells if cell_kind(c, content) == kind] for kind, title in KINDS.items()}
    best = [visible(f"{title}: {ranking_summary(of_kind)}") for title, of_kind in by_kind.items() if of_kind]

    def show() -> None:
        for line in best:
            print(line)
        say(f"{failed} of {len(cells)} cells failed; tables in {output}: results.md, .html and .json")

    return Result({"output": str(output), "cells": len(cells), "failed": failed, "first": best}, show)
