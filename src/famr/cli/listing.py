"""`famr classes`."""

from __future__ import annotations

from typing import Annotated

import typer

from famr.cli import options as opt
from famr.cli.printing import print_json, visible


def classes(
    model: Annotated[str | None, typer.Argument(help="The model whose classes to list.")] = None,
    data: Annotated[str | None, typer.Option(help="Or the data whose classes to list.")] = None,
    weights: opt.Weights = None,
    data_root: opt.DataRoot = None,
    label_column: opt.LabelColumn = None,
    as_json: opt.AsJson = False,
) -> None:
    """List the class names of a model or of a data set."""
    from famr.cli.commands import list_classes

    labels = list_classes(model, data, weights, data_root, label_column)
    if as_json:
        print_json({"classes": labels})
    else:
        for index, label in enumerate(labels):
            print(f"{index:5d}  {visible(label)}")
