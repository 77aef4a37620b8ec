"""Options that several commands share, and what they turn into. Imports nothing heavy."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from famr.errors import RequestError

if TYPE_CHECKING:
    from famr.data.request import Request

Model = Annotated[str, typer.Option("--model", help="timm:NAME, hf:ID-or-folder, torchvision:NAME or a run folder.")]
Weights = Annotated[Path | None, typer.Option(help="Local weights for that model: .safetensors, or .pth of tensors.")]
ModelArg = Annotated[
    list[str] | None,
    typer.Option("--model-arg", metavar="NAME=VALUE", help="Argument of timm's constructor, e.g. img_size=32."),
]
DataSpec = Annotated[
    str,
    typer.Option("--data", help="digits, folder:PATH, parquet:PATH, hf:ID-or-folder or torchvision:NAME."),
]
DataRoot = Annotated[str | None, typer.Option("--data-root", help="Where torchvision keeps its files.")]
LabelColumn = Annotated[str | None, typer.Option("--label-column", help="The class column; may be text.")]
SplitSeed = Annotated[int, typer.Option(min=0, help="Seed of the test split, for data that has none.")]
OutputDir = Annotated[Path, typer.Option("--output-dir", "-o", help="The run folder to write; it must not exist.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a folder that famr wrote.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of everything random.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output, nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
ByName = Annotated[bool, typer.Option("--match-labels-by-name", help="Accept the same class names in another order.")]


# The settings of `forget`; where one is not given, the method's own default holds.
Paper = Annotated[bool, typer.Option("--paper", help="The paper's algorithm and numbers, not the default method.")]
Target = Annotated[str | None, typer.Option(help="uniform, masked, reference, tempered or probe.")]
Temperature = Annotated[float | None, typer.Option(help="τ of the target; default: as on held-out images.")]
Anchor = Annotated[str | None, typer.Option(help="How distance to the original is measured: l2, fisher or kfac.")]
Strength = Annotated[str | None, typer.Option(help="λ: how firmly the anchor holds; a number, or auto.")]
Budget = Annotated[float | None, typer.Option(help="Share of retained answers that may be lost where λ is auto.")]
FisherImages = Annotated[int | None, typer.Option(help="Retained images to take the Fisher information from.")]
FunctionStrength = Annotated[float | None, typer.Option(help="λ of an anchor on a few retained answers.")]
FunctionImages = Annotated[int | None, typer.Option(help="Retained images a class for that anchor.")]
EditedShare = Annotated[float | None, typer.Option(help="Share of the layers to change, from the last one back.")]
EditHead = Annotated[bool | None, typer.Option(help="Change the layer that gives the answer, too.")]
ForgetRate = Annotated[float | None, typer.Option(help="η of Alg. 1.")]
ForgetEpochs = Annotated[int | None, typer.Option(help="Passes over the forget set.")]
ForgetBatch = Annotated[int | None, typer.Option(help="Images a step.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with a run that was stopped; else it begins anew.")]
GoesOn = Annotated[
    bool, typer.Option("--resume", help="Go on where it was stopped; it does so without being told, too.")
]
Optimiser = Annotated[str | None, typer.Option(help="natural, sgd, adam or adamw.")]
Reduction = Annotated[str | None, typer.Option(help="sum or mean over a batch.")]
Demotion = Annotated[float | None, typer.Option(help="γ: push forgotten classes down among the unlikely; 0: do not.")]
Alpha = Annotated[float | None, typer.Option(help="α: weight of the KL to the target.")]
Beta = Annotated[float | None, typer.Option(help="β: weight of the style loss; default: balanced.")]
CertifiedHead = Annotated[bool, typer.Option("--certified-head", help="Train only a linear head, for (ε, δ) removal.")]
Epsilon = Annotated[float, typer.Option(help="ε of the certified head.")]
Delta = Annotated[float, typer.Option(help="δ of the certified head.")]
Sigma = Annotated[float, typer.Option(help="Noise of the certified head; more allows more removals.")]
HeadStrength = Annotated[float, typer.Option(help="λ of the certified head, an image.")]
ForgetPrecision = Annotated[str | None, typer.Option(help="fp32 or bf16; default bf16 on CUDA, else fp32.")]
Gates = Annotated[bool, typer.Option(help="Fail, and write nothing, where a run does nothing or destroys the model.")]


Processes = Annotated[int | None, typer.Option(help="Processes that must have been started, e.g. by torchrun.")]
Shard = Annotated[bool, typer.Option("--shard", help="Divide the weights among the processes, not only the images.")]


HEAD_ALONE = ("epsilon", "delta", "sigma", "head_strength")
"""Options of `train` that say something about a certified head, and about nothing else."""
TRAINING_ALONE = ("epochs", "batch_size", "learning_rate", "weight_decay", "augment", "precision", "compile_network")
REMOVAL = (
    *("model", "output_dir", "data", "class_", "sample", "samples", "concept", "style", "data_root", "label_column"),
    *("split_seed", "match_labels_by_name", "device", "overwrite", "as_json", "quiet"),
)
"""Options of `forget` that say something about images to be removed from a certified head."""


def require_meaning(ctx: typer.Context, means: Callable[[str], bool], subject: str, fix: str) -> None:
    """Refuse an option that was given and would do nothing: whoever gave it expects something."""
    for each in ctx.command.params:
        source = ctx.get_parameter_source(str(each.name))
        if source is not None and source.name == "COMMANDLINE" and not means(str(each.name)):
            raise RequestError(f"{each.opts[0]} means nothing for {subject}.", where=ctx.command_path, fix=fix)


def model_arguments(pairs: list[str] | None) -> dict[str, Any]:
    """`img_size=32` to a name and a Python value.

    >>> model_arguments(["img_size=32", "act_layer=gelu"])
    {'img_size': 32, 'act_layer': 'gelu'}
    """
    arguments: dict[str, Any] = {}
    for pair in pairs or []:
        name, text = column_and_value(pair, "--model-arg")
        try:
            arguments[name] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            arguments[name] = text
    return arguments


def column_and_value(text: str, option: str) -> tuple[str, str]:
    """`COLUMN=VALUE` in two.

    >>> column_and_value("superclass=large_carnivores", "--concept")
    ('superclass', 'large_carnivores')
    """
    column, equals, value = text.partition("=")
    if not (column and equals and value):
        raise RequestError(f"{option} takes COLUMN=VALUE, got {text!r}.", fix=f"{option} superclass=fish")
    return column, value


def request_from(
    classes: list[str] | None,
    sample: list[str] | None,
    samples: Path | None,
    concept: str | None,
    style: str | None,
    prefix: str = "--",
) -> Request:
    """A request from the options of the command line."""
    from famr.data.request import Request, read_samples

    return Request(
        classes=classes or (),
        samples=[*(sample or []), *(read_samples(samples) if samples else [])],
        concept=column_and_value(concept, f"{prefix}concept") if concept else None,
        style=column_and_value(style, f"{prefix}style") if style else None,
    )


def number_or_auto(text: str | None) -> float | str | None:
    """`--strength`: a number, or the word auto."""
    if text is None or text == "auto":
        return text
    try:
        return float(text)
    except ValueError as error:
        raise RequestError(f"--strength takes a number or auto, got {text!r}.", fix="--strength auto") from error


def data_facts(
    spec: str,
    root: str | None,
    label_column: str | None,
    split_seed: int,
    *,
    by_name: bool,
    forget_only: bool = False,
) -> dict[str, Any]:
    """How the data was opened: recorded in run.json, so that it can be opened the same way again."""
    return {
        "spec": spec,
        "root": root,
        "label_column": label_column,
        "split_seed": split_seed,
        "match_labels_by_name": by_name,
        "forget_only": forget_only,
    }
