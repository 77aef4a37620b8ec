"""`famr forget`: make a model forget, evaluate it, write the run folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from famr.cli.certified_head import RECORD, USED_BY_REMOVAL, remove_from_certified
from famr.cli.flags import Fields, Given
from famr.cli.opening import DataSource, divide, load_retrained, open_splits, open_style_target
from famr.cli.options import (
    ByName,
    ComputeOptions,
    DataRoot,
    LabelColumn,
    ModelSource,
    OutputOptions,
    Paper,
    Processes,
    RequestOptions,
    SplitSeed,
    require_used,
)
from famr.cli.printing import Result, print_scores, progress, say
from famr.cli.ranked import require_multi_process
from famr.cli.resuming import note_on_resuming, resume_state
from famr.config import CHOICES, FAMR
from famr.data.request import Request
from famr.engine.distributed import ALONE, Ranks
from famr.engine.launch import process_group
from famr.engine.pick import pick_engine
from famr.errors import RequestError
from famr.evaluation.evaluate import compare
from famr.metrics.scores import Scores
from famr.models import load_model
from famr.runs.folder import earlier_runs
from famr.unlearn.forget import forget
from famr.unlearn.history import Monitor
from famr.unlearn.sketch import Sketch


@dataclass(frozen=True, kw_only=True)
class ForgetDataOptions:
    """The data the model was trained on, or only the images to be forgotten.

    Attributes:
        data: The data the model was trained on, as for `famr train`.
        forget_data: Instead of --data: a source whose images are all to be forgotten.
    """

    data: str | None = None
    forget_data: str | None = None
    data_root: DataRoot = None
    label_column: LabelColumn = None
    split_seed: SplitSeed = 0
    match_labels_by_name: ByName = False

    def source(self) -> DataSource:
        """The data as it is recorded and opened.

        Raises:
            RequestError: Both kinds of data are given, or none.
        """
        if (self.data is None) == (self.forget_data is None):
            raise RequestError("Give either --data or --forget-data.", fix="--data digits --class 3")
        return DataSource(
            self.data or self.forget_data,
            self.data_root,
            self.label_column,
            self.split_seed,
            self.match_labels_by_name,
            forget_only=self.data is None,
        )


@dataclass(frozen=True, kw_only=True)
class ForgetOptions:
    """What a run may use beside the data, and what is checked.

    Attributes:
        style_target: Images of a neutral style. None: the retained images.
        sketch: Statistics by `famr sketch`, instead of retained images.
        retrained: A model trained without the forget set.
        track_retain: Evaluate retained accuracy after each epoch, on up to 2,000 images.
        gates: Fail, and write nothing, where a run forgets next to nothing or destroys the model.
    """

    style_target: str | None = None
    sketch: Path | None = None
    retrained: str | None = None
    track_retain: bool = True
    gates: bool = True


@dataclass(frozen=True)
class ForgetTask:
    """A run of `famr forget`.

    Attributes:
        model: The model that is to forget.
        source: The data.
        request: What to forget.
        method: Its settings.
        output: The folder to write.
        options: What the run may use, and what is checked.
        run: Seed, device, whether to resume.
    """

    model: ModelSource
    source: DataSource
    request: Request
    method: FAMR
    output: OutputOptions
    options: ForgetOptions = field(default_factory=ForgetOptions)
    run: ComputeOptions = field(default_factory=ComputeOptions)

    def inputs(self) -> list[str | Path | None]:
        """Files and folders that are read, which the output must not overwrite."""
        model, options = self.model, self.options
        return [model.model, model.weights, options.retrained, options.sketch, self.source.spec, options.style_target]


def forget_command(
    *,
    context: typer.Context,
    model: ModelSource,
    data: ForgetDataOptions,
    request: RequestOptions,
    output: OutputOptions,
    paper: Paper = False,
    method: Annotated[Given, Fields(FAMR, given=True, choices=CHOICES, defaults={"beta": None})],
    options: ForgetOptions,
    run: ComputeOptions,
    processes: Processes = None,
    shard: Annotated[bool, typer.Option("--shard")] = False,
) -> Result | None:
    """Make a model forget a class, samples, a concept or a style.

    Writes the new model and its metrics. Settings that are not given are picked by the request and the available data.

    Args:
        context: Of the command.
        model: The model that is to forget.
        data: The data.
        request: What to forget.
        output: The folder to write.
        paper: Start from the paper's settings.
        method: Settings of the method.
        options: What the run may use, and what is checked.
        run: Seed, device, whether to resume.
        processes: How many processes there must be.
        shard: Divide the weights among the processes, not only the images.

    Returns:
        None on all ranks but the first.
    """
    source = data.source()
    if (Path(model.model) / RECORD).is_file():
        require_used(context, USED_BY_REMOVAL.__contains__, "a certified head", "Leave it out.")
        require_multi_process("forget of a certified head")
        return remove_from_certified(Path(model.model), source, request.request(), output, run.device)
    task = ForgetTask(model, source, request.request(), settings(method, paper, request.style), output, options, run)
    with process_group(processes, shard=shard, device=run.device) as ranks:
        scores = run_forget(task, ranks)
    if not ranks.first:
        return None

    def show() -> None:
        print_scores(scores, f"{output.output_dir}")
        say(f"written to {output.output_dir}")

    return Result(scores.to_json(), show)


def settings(given: Given, paper: bool, style: str | None) -> FAMR:
    """The method as the command line describes it.

    Args:
        given: Fields of `FAMR`.
        paper: Whether the others are the paper's.
        style: The style to forget, for which β is balanced where it is not given.

    Raises:
        RequestError: A setting is out of its range.
    """
    start = FAMR.paper() if paper else FAMR()
    if style or given.get("style_layer"):
        given = {"beta": None, **given}
    return FAMR.from_json({**start.to_json(), **given})


def run_forget(task: ForgetTask, ranks: Ranks = ALONE) -> Scores:
    """Forget, evaluate, write the run folder; nothing is written unless all of it went well.

    Args:
        task: What to do.
        ranks: The processes that share it; only the first writes.

    Returns:
        The scores.

    Raises:
        GateError: The run forgets next to nothing or destroys the model.
    """
    options, run = task.options, task.run
    with ranks.fail_together():
        if ranks.first:
            task.output.require_free(task.inputs())
        engine = pick_engine(run.device, ranks=ranks)
        original = load_model(task.model.model, weights=task.model.weights, arguments=task.model.arguments)
        original, splits = open_splits(original, task.request, task.source, earlier_runs(Path(task.model.model)))
        seen, scored = divide(splits)
        retrained = load_retrained(options.retrained, original, task.request) if options.retrained else None
        style_target = open_style_target(options.style_target)
        sketch = None if options.sketch is None else Sketch.load(options.sketch)
        state = resume_state(task.output.output_dir, run.resume, ranks)
    title = f"forgetting {task.request.describe()}"
    with note_on_resuming(state, ranks), progress(None, title, run.quiet or not ranks.first) as on_event:
        result = forget(
            original,
            seen,
            task.method,
            style_target=style_target,
            sketch=sketch,
            seed=run.seed,
            engine=engine,
            monitor=Monitor(
                track_retain=options.track_retain,
                gates=options.gates,
                on_event=on_event,
                resume_state=None if ranks.sharded else state,
            ),
        )
    scores = compare(original, result.model, retrained, scored, device=str(engine.device), ranks=ranks)
    with ranks.fail_together():
        if ranks.first:
            data = {**task.source.to_json(), "style_target": options.style_target}
            result.save(
                task.output.output_dir,
                scores=scores,
                original=task.model.to_json(),
                data=data,
                overwrite=task.output.overwrite,
            )
            state.discard()
    return scores
