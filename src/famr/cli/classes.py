"""`famr classes`: the class names of a model or of data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from famr.cli.options import DataRoot, LabelColumn, Weights
from famr.cli.printing import Result
from famr.data import open_data
from famr.errors import CheckpointError, RequestError
from famr.models import load_model
from famr.report.escaping import visible


def classes_command(
    model: Annotated[str | None, typer.Argument()] = None,
    data: str | None = None,
    weights: Weights = None,
    data_root: DataRoot = None,
    label_column: LabelColumn = None,
) -> Result:
    """List the class names of a model or of a data set.

    Args:
        model: The model whose classes to list.
        data: Or the data whose classes to list.
        weights: Of the model.
        data_root: Of the data.
        label_column: Of the data.
    """
    labels = class_names(model, data, weights, data_root, label_column)

    def show() -> None:
        for index, label in enumerate(labels):
            print(f"{index:5d}  {visible(label)}")

    return Result({"classes": labels}, show)


def class_names(
    model: str | None, data: str | None, weights: Path | None, root: str | None, label_column: str | None
) -> list[str]:
    """Class names by index.

    Args:
        model: As for `load_model`; or give `data`.
        data: As for `open_data`.
        weights: Of the model.
        root: Of the data.
        label_column: Of the data.

    Raises:
        RequestError: Both are given, or none.
        CheckpointError: The checkpoint has no class names.
    """
    if (model is None) == (data is None):
        raise RequestError("Name a model or --data.", fix="famr classes runs/original")
    if data is not None:
        return list(open_data(data, root=root, label_column=label_column).labels)
    assert model is not None
    labels = load_model(model, weights=weights).labels
    if labels is None:
        raise CheckpointError(
            "The checkpoint carries no class names.", where=model, fix="List those of its data: --data SPEC."
        )
    return list(labels)
