"""`famr bench methods`: methods beside each other on your model and data. Parses, calls, prints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from famr.cli import options as opt
from famr.cli.printing import print_json, say
from famr.cli.ranked import is_first_process
from famr.errors import RequestError

app = typer.Typer(
    name="bench",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Compare methods on your model and data.",
)


@app.callback()
def bench() -> None:
    """Keep `methods` a subcommand although it is the only one."""


@app.command()
def methods(
    data: opt.DataSpec,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The folder of the bench; cells in it are not run again.")
    ],
    model: Annotated[str | None, typer.Option(help="A run folder of `famr train`: the original, for one seed.")] = None,
    start: Annotated[
        str | None,
        typer.Option(help="What training starts from: timm:NAME, hf:ID-or-folder, torchvision:NAME or scratch."),
    ] = None,
    weights: opt.Weights = None,
    model_arg: opt.ModelArg = None,
    from_scratch: Annotated[bool, typer.Option("--from-scratch", help="Draw every weight at random.")] = False,
    class_: Annotated[
        list[str] | None, typer.Option("--class", help="Forget this class; a request each. Repeatable.")
    ] = None,
    random_classes: Annotated[int, typer.Option(help="So many classes in addition, drawn at random.")] = 0,
    concept: Annotated[list[str] | None, typer.Option(metavar="COLUMN=VALUE", help="A concept. Repeatable.")] = None,
    samples_share: Annotated[
        list[float] | None, typer.Option(help="A share of the training images, drawn at random. Repeatable.")
    ] = None,
    methods: Annotated[
        str, typer.Option(help="Methods, separated by commas; all: every method that can serve the request.")
    ] = "all",
    seeds: Annotated[str, typer.Option(help="Seeds, separated by commas.")] = "0",
    trials: Annotated[int, typer.Option(help="Runs a method may use for tuning; 1: its default numbers.")] = 6,
    tune_on: Annotated[str | None, typer.Option(help="A class to tune on; default: drawn from the remaining.")] = None,
    tuning_seed: Annotated[int | None, typer.Option(help="The original to tune on; default: the first seed's.")] = None,
    leave_out_unserved: Annotated[
        bool,
        typer.Option(
            "--leave-out-unserved", help="List a named method that cannot serve a request; default: refuse it."
        ),
    ] = False,
    shards: Annotated[int, typer.Option(help="Shards of the ensemble that SISA needs.")] = 5,
    most_epochs: Annotated[int | None, typer.Option(help="Limit on a method's epochs over retained images.")] = None,
    processes: opt.Processes = None,
    epochs: Annotated[int, typer.Option(help="Passes over the training images.")] = 10,
    batch_size: Annotated[int, typer.Option(help="Images a step of training.")] = 128,
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate of AdamW.")] = 3e-4,
    weight_decay: Annotated[float, typer.Option(help="Weight decay of AdamW.")] = 0.05,
    augment: Annotated[bool, typer.Option(help="Random crops, and mirror images where the class allows.")] = True,
    compile_network: Annotated[
        bool | None,
        typer.Option("--compile/--no-compile", help="torch.compile for training; default for long training."),
    ] = None,
    precision: Annotated[str | None, typer.Option(help="fp32 or bf16; default bf16 on CUDA, else fp32.")] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run failed cells again.")] = False,
    resume: opt.AlwaysResumes = False,  # noqa: ARG001  # it always resumes: finished cells are in the folder
    data_name: Annotated[str | None, typer.Option(help="What the tables call the data.")] = None,
    data_root: opt.DataRoot = None,
    label_column: opt.LabelColumn = None,
    split_seed: opt.SplitSeed = 0,
    match_labels_by_name: opt.ByName = False,
    device: opt.Device = "auto",
    as_json: opt.AsJson = False,
    quiet: opt.Quiet = False,
) -> None:
    """Methods × requests × seeds, tuned on other requests, beside retrained models; resumes after a stop."""
    from famr.bench.setup import BenchSetup
    from famr.cli.bench_running import MethodsOptions, run_methods
    from famr.engine.launch import joined
    from famr.training import Training

    setup = BenchSetup(
        data_spec=data,
        data_name=data_name,
        data_root=data_root,
        label_column=label_column,
        split_seed=split_seed,
        weights=weights,
        arguments=opt.model_arguments(model_arg),
        from_scratch=from_scratch,
        training=Training(
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            augmentation=Training().augmentation if augment else None,
            compile=compile_network,
        ),
    )
    options = MethodsOptions(
        start=start,
        model=model,
        match_labels_by_name=match_labels_by_name,
        classes=class_ or [],
        random_classes=random_classes,
        concepts=[opt.column_and_value(pair, "--concept") for pair in concept or []],
        shares=samples_share or [],
        methods=[name.strip() for name in methods.split(",") if name.strip()],
        seeds=_seeds(seeds),
        trials=trials,
        tune_on=tune_on,
        tuning_seed=tuning_seed,
        leave_out_unserved=leave_out_unserved,
        shards=shards,
        most_epochs=most_epochs,
        device=device,
        precision=precision,
        retry_failed=retry_failed,
        quiet=quiet or not is_first_process(),
    )
    with joined(processes, device=device) as ranks:
        report = run_methods(setup, options, output, ranks)
    if not is_first_process():
        return
    if as_json:
        print_json(report)
    else:
        for line in report["first"]:
            print(line)
        say(f"{report['failed']} of {report['cells']} cells failed; tables in {output}: results.md, .html and .json")


def _seeds(text: str) -> tuple[int, ...]:
    """`0,1,2` to numbers."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise RequestError(f"--seeds takes whole numbers with commas, got {text!r}.", fix="--seeds 0,1,2") from error
