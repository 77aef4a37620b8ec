"""`famr classes`: the class names of a model or of data."""

from __future__ import annotations

from collections.abc import Sequence
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

    Raises:
        RequestError: Both a model and data are given, or none.
        CheckpointError: The checkpoint has no class names.
    """
    if (model is None) == (data is None):
        raise RequestError("Name a model or --data.", fix="famr classes runs/original")
    if model is None:
        labels: Sequence[str] | None = open_data(str(data), root=data_root, label_column=label_column).labels
    else:
        labels = load_model(model, weights=weights).labels
    if labels is None:
        raise CheckpointError(
            "The checkpoint carries no class names.", where=model, fix="List those of its data: --data SPEC."
        )
    names = list(labels)

    def show() -> None:
        for index, name in enumerate(names):
            print(f"{index:5d}  {visible(name)}")

    return Result({"classes": names}, show)
