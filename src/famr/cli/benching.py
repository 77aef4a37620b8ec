"""`famr bench`: methods beside each other, the paper's tables and figures, and speed. Parses, calls, prints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from famr.cli import options as opt
from famr.cli.printing import print_json, say
from famr.cli.ranked import require_sharing, speaks
from famr.errors import RequestError

if TYPE_CHECKING:
    from famr.training import Training

app = typer.Typer(
    name="bench",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Compare methods on your model and data; make the paper's tables and figures again.",
)

Start = Annotated[
    str | None,
    typer.Option("--start", help="What training starts from: timm:NAME, hf:ID-or-folder, torchvision:NAME or scratch."),
]
Output = Annotated[Path, typer.Option("--output", "-o", help="The folder of the bench; it goes on where it stopped.")]
DataName = Annotated[str | None, typer.Option(help="What the tables call the data.")]
Classes = Annotated[list[str] | None, typer.Option("--class", help="Forget this class; a request each. Repeatable.")]
Seeds = Annotated[str, typer.Option(help="Seeds, with commas between them.")]
FromScratch = Annotated[bool, typer.Option("--from-scratch", help="Draw every weight at random.")]
Epochs = Annotated[int, typer.Option(help="Passes over the training images.")]
BatchSize = Annotated[int, typer.Option(help="Images a step of training.")]
LearningRate = Annotated[float, typer.Option(help="Peak learning rate of AdamW.")]
WeightDecay = Annotated[float, typer.Option(help="Weight decay of AdamW.")]
Augment = Annotated[bool, typer.Option(help="Random crops, and mirror images where the class allows.")]
Compile = Annotated[
    bool | None,
    typer.Option("--compile/--no-compile", help="torch.compile for training; default where it pays."),
]
Retry = Annotated[bool, typer.Option("--retry-failed", help="Run cells again that failed before.")]


@app.command()
def methods(
    data: opt.DataSpec,
    output: Output,
    model: Annotated[str | None, typer.Option(help="A run folder of `famr train`: the original, for one seed.")] = None,
    start: Start = None,
    weights: opt.Weights = None,
    model_arg: opt.ModelArg = None,
    from_scratch: FromScratch = False,
    class_: Classes = None,
    random_classes: Annotated[int, typer.Option(help="Also so many classes, drawn at random.")] = 0,
    concept: Annotated[list[str] | None, typer.Option(metavar="COLUMN=VALUE", help="A concept. Repeatable.")] = None,
    samples_share: Annotated[
        list[float] | None, typer.Option(help="A share of the training images, drawn at random. Repeatable.")
    ] = None,
    methods: Annotated[str, typer.Option(help="Methods, with commas between them; all: those that can serve.")] = "all",
    seeds: Seeds = "0",
    trials: Annotated[int, typer.Option(help="Runs a method may use for tuning; 1: its default numbers.")] = 6,
    tune_on: Annotated[str | None, typer.Option(help="A class to tune on; default: drawn from the others.")] = None,
    tuning_seed: Annotated[int | None, typer.Option(help="The original to tune on; default: the first seed's.")] = None,
    leave_out_unserved: Annotated[
        bool,
        typer.Option("--leave-out-unserved", help="A method that is named and cannot serve is shown so, not refused."),
    ] = False,
    shards: Annotated[int, typer.Option(help="Shards of the ensemble that SISA needs.")] = 5,
    most_epochs: Annotated[int | None, typer.Option(help="Methods go over retained images at most so often.")] = None,
    processes: opt.Processes = None,
    epochs: Epochs = 10,
    batch_size: BatchSize = 128,
    learning_rate: LearningRate = 3e-4,
    weight_decay: WeightDecay = 0.05,
    augment: Augment = True,
    compile_network: Compile = None,
    precision: Annotated[str | None, typer.Option(help="fp32 or bf16; default bf16 on CUDA, else fp32.")] = None,
    retry_failed: Retry = False,
    resume: opt.GoesOn = False,  # noqa: ARG001  # it always does: finished cells are in the folder
    data_name: DataName = None,
    data_root: opt.DataRoot = None,
    label_column: opt.LabelColumn = None,
    split_seed: opt.SplitSeed = 0,
    match_labels_by_name: opt.ByName = False,
    device: opt.Device = "auto",
    as_json: opt.AsJson = False,
    quiet: opt.Quiet = False,
) -> None:
    """Methods × requests × seeds, each tuned on other requests, beside retrained models; goes on after a stop."""
    from famr.cli.bench_running import Subject, run_methods
    from famr.engine.launch import joined

    subject = Subject(
        data_facts=opt.data_facts(data, data_root, label_column, split_seed, by_name=match_labels_by_name),
        data_name=data_name,
        start=start,
        weights=weights,
        arguments=opt.model_arguments(model_arg),
        from_scratch=from_scratch,
        training=_training(epochs, batch_size, learning_rate, weight_decay, augment, compile_network),
        model=model,
        device=device,
        precision=precision,
        retry_failed=retry_failed,
        quiet=quiet or not speaks(),
    )
    with joined(processes, device=device) as ranks:
        report = run_methods(
            subject,
            output,
            classes=class_ or [],
            random_classes=random_classes,
            concepts=[opt.column_and_value(pair, "--concept") for pair in concept or []],
            shares=samples_share or [],
            methods=[name.strip() for name in methods.split(",") if name.strip()],
            seeds=_numbers(seeds),
            trials=trials,
            tune_on=tune_on,
            tuning_seed=tuning_seed,
            leave_out_unserved=leave_out_unserved,
            shards=shards,
            most_epochs=most_epochs,
            ranks=ranks,
        )
    if not speaks():
        return
    if as_json:
        print_json(report)
    else:
        for line in report["first"]:
            print(line)
        say(f"{report['failed']} of {report['cells']} cells failed; tables in {output}: results.md, .html and .json")


@app.command()
def paper(
    output: Output,
    table: Annotated[int | None, typer.Option(help="1: CIFAR-100. 2: ImageNet-100, or data that stands in.")] = None,
    figure: Annotated[
        int | None,
        typer.Option(help="1: KL, For-Acc by epoch. 2: entropy, For-Acc. 3: KL, entropy, Ret-Acc. 4: small, large."),
    ] = None,
    data: Annotated[str | None, typer.Option(help="As for `train`; without it nothing is run, only shown.")] = None,
    data_name: DataName = None,
    size: Annotated[list[str] | None, typer.Option(help="Ti, S, B or L. Repeatable; default: all four.")] = None,
    weights: opt.Weights = None,
    model_arg: opt.ModelArg = None,
    from_scratch: FromScratch = False,
    little: Annotated[
        bool, typer.Option("--little", help="Tiny stand-ins for the four models, to try it out.")
    ] = False,
    class_: Classes = None,
    random_classes: Annotated[int, typer.Option(help="So many classes, drawn at random, where none is named.")] = 3,
    seeds: Seeds = "0",
    retrained: Annotated[bool, typer.Option(help="Retrain references; else their rows say there are none.")] = True,
    default: Annotated[bool, typer.Option(help="Run the default beside the paper's algorithm.")] = True,
    preset: Annotated[str, typer.Option(help="Whose history a figure shows: paper or default.")] = "paper",
    epochs: Epochs = 50,
    batch_size: BatchSize = 128,
    learning_rate: LearningRate = 3e-4,
    weight_decay: WeightDecay = 0.05,
    augment: Augment = True,
    compile_network: Compile = None,
    retry_failed: Retry = False,
    resume: opt.GoesOn = False,  # noqa: ARG001  # it always does: finished cells are in the folder
    data_root: opt.DataRoot = None,
    label_column: opt.LabelColumn = None,
    split_seed: opt.SplitSeed = 0,
    device: opt.Device = "auto",
    as_json: opt.AsJson = False,
    quiet: opt.Quiet = False,
) -> None:
    """A table or a figure of the paper: runs what the folder does not hold, then shows all that it holds."""
    from famr.cli.bench_running import Subject, run_paper

    require_sharing("bench paper")
    if (table is None) == (figure is None):
        raise RequestError("Give either --table or --figure.", where="famr bench paper", fix="--table 1")
    if preset not in ("paper", "default"):
        raise RequestError(f"`--preset` must be paper or default, got {preset!r}.", where="famr bench paper")
    subject = None
    if data is not None:
        subject = Subject(
            data_facts=opt.data_facts(data, data_root, label_column, split_seed, by_name=False),
            data_name=data_name,
            start=None,
            weights=weights,
            arguments=opt.model_arguments(model_arg),
            from_scratch=from_scratch,
            training=_training(epochs, batch_size, learning_rate, weight_decay, augment, compile_network),
            device=device,
            retry_failed=retry_failed,
            quiet=quiet,
        )
    report = run_paper(
        subject,
        output,
        table=table,
        figure=figure,
        sizes=size or [],
        little=little,
        classes=class_ or [],
        random_classes=random_classes,
        seeds=_numbers(seeds),
        of_paper=preset == "paper",
        retrained=retrained,
        default=default,
    )
    if as_json:
        print_json(report)
    else:
        for line in report["lines"]:
            print(line)
        say(f"written: {', '.join(report['files'])}")


def _names(text: str | None) -> list[str]:
    """`Ti,B` to names."""
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def _numbers(text: str) -> tuple[int, ...]:
    """`0,1,2` to numbers."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise RequestError(f"--seeds takes whole numbers with commas, got {text!r}.", fix="--seeds 0,1,2") from error


def _training(
    epochs: int, batch_size: int, learning_rate: float, weight_decay: float, augment: bool, compile_network: bool | None
) -> Training:
    """How originals and retrained models are trained."""
    from famr.training import Training

    return Training(
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        augmentation=Training().augmentation if augment else None,
        compile=compile_network,
    )
