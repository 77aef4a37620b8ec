"""Flags that several commands share, one by one and in groups. Imports nothing heavy."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from famr.cli.flags import given_on_command_line
from famr.errors import RequestError

if TYPE_CHECKING:
    from famr.cli.opening import DataSource
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
ByName = Annotated[bool, typer.Option("--match-labels-by-name", help="Accept the same class names in another order.")]
OutputDir = Annotated[Path, typer.Option("--output-dir", "-o", help="The run folder to write; it must not exist.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a folder that famr wrote.")]
Paper = Annotated[bool, typer.Option("--paper", help="The paper's algorithm and numbers, not the default method.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of every random draw.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
Resume = Annotated[bool, typer.Option("--resume", help="Resume a run that was stopped; else it starts from scratch.")]
AlwaysResumes = Annotated[
    bool, typer.Option("--resume", help="Resume where it was stopped; this happens without the flag, too.")
]
Processes = Annotated[
    int | None, typer.Option(help="Processes that must have been started, e.g. by torchrun; others are an error.")
]
ForgottenRun = Annotated[Path, typer.Argument(help="A folder that `famr forget` wrote.")]
RemovedRun = Annotated[Path, typer.Argument(help="A folder that `famr forget` or `famr train --without-…` wrote.")]
Retrained = Annotated[str | None, typer.Option(help="A model trained without the forget set.")]
MovedData = Annotated[str | None, typer.Option(help="The data, if it has moved.")]


@dataclass(frozen=True, kw_only=True)
class ModelSource:
    """Where a model comes from."""

    model: Model
    weights: Weights = None
    model_arg: ModelArg = None

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of the constructor, by name."""
        return model_arguments(self.model_arg)

    def to_json(self) -> dict[str, Any]:
        """As run.json has it."""
        weights = None if self.weights is None else str(self.weights)
        return {"model": self.model, "weights": weights, "arguments": self.arguments}


@dataclass(frozen=True, kw_only=True)
class NewModelSource(ModelSource):
    """Where training starts."""

    from_scratch: Annotated[bool, typer.Option("--from-scratch", help="Draw every weight at random.")] = False


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Which data, and how it is read."""

    data: DataSpec
    data_root: DataRoot = None
    label_column: LabelColumn = None
    split_seed: SplitSeed = 0

    def source(self, *, match_labels_by_name: bool = False) -> DataSource:
        """The data as it is recorded and opened.

        Args:
            match_labels_by_name: Whether model and data may name the same classes in another order.
        """
        from famr.cli.opening import DataSource

        return DataSource(self.data, self.data_root, self.label_column, self.split_seed, match_labels_by_name)


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """The folder to write."""

    output_dir: OutputDir
    overwrite: Overwrite = False

    def require_free(self, inputs: Sequence[str | Path | None]) -> None:
        """Check, before any work, that the folder may be written.

        Args:
            inputs: Models and data, which must not be overwritten; None entries are passed over.

        Raises:
            RequestError: It exists, is an input, or is a link.
            StorageError: It cannot be written to.
        """
        from famr.runs.folder import check_output

        check_output(self.output_dir, self.overwrite, inputs)


@dataclass(frozen=True, kw_only=True)
class ComputeOptions:
    """How a run is made, whatever it does."""

    seed: Seed = 0
    device: Device = "auto"
    resume: Resume = False
    quiet: Quiet = False


@dataclass(frozen=True, kw_only=True)
class MovedOptions:
    """What of a finished run is no longer where its records say."""

    original: Annotated[str | None, typer.Option(help="The original, if it has moved.")] = None
    data: MovedData = None
    data_root: DataRoot = None


@dataclass(frozen=True, kw_only=True)
class RequestOptions:
    """What to forget."""

    class_: Annotated[list[str] | None, typer.Option("--class", help="A class, by name. Repeatable.")] = None
    sample: Annotated[list[str] | None, typer.Option(help="A sample: index, id or path. Repeatable.")] = None
    samples: Annotated[Path | None, typer.Option(help="A CSV or TXT file of samples.")] = None
    concept: Annotated[str | None, typer.Option(metavar="COLUMN=VALUE", help="Images with this value.")] = None
    style: Annotated[str | None, typer.Option(metavar="COLUMN=VALUE", help="A style; needs --style-layer.")] = None

    def request(self) -> Request:
        """The request.

        Raises:
            RequestError: It is incomplete, or names more than one kind of thing.
        """
        return build_request(self.class_, self.sample, self.samples, self.concept, self.style)


def build_request(
    classes: list[str] | None,
    sample: list[str] | None,
    samples: Path | None,
    concept: str | None,
    style: str | None,
    prefix: str = "--",
) -> Request:
    """A request as flags name it.

    Args:
        classes: Names of classes.
        sample: Samples, one by one.
        samples: A file of samples.
        concept: COLUMN=VALUE.
        style: COLUMN=VALUE.
        prefix: Before the names of the flags, in errors.

    Raises:
        RequestError: It is incomplete, or names more than one kind of thing.
    """
    from famr.data.request import Request, read_samples

    return Request(
        classes=classes or (),
        samples=[*(sample or []), *(read_samples(samples) if samples else [])],
        concept=column_and_value(concept, f"{prefix}concept") if concept else None,
        style=column_and_value(style, f"{prefix}style") if style else None,
    )


def require_used(context: typer.Context, is_used: Callable[[str], bool], subject: str, fix: str) -> None:
    """Refuse a flag that was given and has no effect.

    Args:
        context: Of the command.
        is_used: Whether a flag has an effect, by the name of its parameter.
        subject: For what it has none.
        fix: What to do.

    Raises:
        RequestError: There is such a flag.
    """
    for flag in context.command.params:
        name = str(flag.name)
        if given_on_command_line(context, name) and not is_used(name):
            raise RequestError(f"{flag.opts[0]} means nothing for {subject}.", where=context.command_path, fix=fix)


def model_arguments(pairs: list[str] | None) -> dict[str, Any]:
    """Arguments of a constructor: names with Python values, or text where a value is no Python literal.

    Args:
        pairs: NAME=VALUE.

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
    """Split `COLUMN=VALUE`.

    Args:
        text: As it was given.
        option: The flag it was given with.

    Raises:
        RequestError: A part is missing.

    >>> column_and_value("superclass=large_carnivores", "--concept")
    ('superclass', 'large_carnivores')
    """
    column, equals, value = text.partition("=")
    if not (column and equals and value):
        raise RequestError(f"{option} takes COLUMN=VALUE, got {text!r}.", fix=f"{option} superclass=fish")
    return column, value
