"""One list of class names for data and checkpoint, or an error that shows both."""

from __future__ import annotations

from dataclasses import replace

from famr.data import Data
from famr.data.splits import Splits
from famr.errors import DataError
from famr.models import Classifier

SHOWN = 8


def match_labels(model: Classifier, data: Data, *, by_name: bool = False) -> tuple[Classifier, Data]:
    """Model and data with the same class names in the same order.

    Args:
        model: A checkpoint without class names takes those of the data, if its head has as many outputs.
        data: The images.
        by_name: Match the data's classes by name where the order differs, or where the data has fewer classes; without
            it they are refused, as equal names may mean other classes.

    Returns:
        The model and the data, each unchanged where nothing had to be matched.

    Raises:
        DataError: The class names, or their number, do not match.
    """
    if model.labels is None:
        outputs = model.class_count()
        if outputs is not None and outputs != len(data.labels):
            raise DataError(
                f"The data has {len(data.labels)} classes, the checkpoint's head {outputs} outputs.",
                where=f"data: {_show(data.labels)}",
                fix="Use the data the checkpoint was trained on, or train a head for these classes (famr train).",
            )
        return replace(model, labels=data.labels), data
    if model.labels == data.labels:
        return model, data
    same_names = sorted(model.labels) == sorted(data.labels)
    if by_name and (same_names or set(data.labels) < set(model.labels)):
        return model, data.with_labels(model.labels)
    raise DataError(
        "Data and checkpoint name the same classes in another order."
        if same_names
        else f"Data ({len(data.labels)} classes) and checkpoint ({len(model.labels)}) do not name the same classes.",
        where=f"data: {_show(data.labels)}; checkpoint: {_show(model.labels)}{_difference(model, data)}",
        fix="If the names mean the same, match them with --match-labels-by-name."
        if set(data.labels) <= set(model.labels)
        else "Use the data the checkpoint was trained on.",
    )


def require_same_labels(model: Classifier, splits: Splits) -> None:
    """Check that the class indices of images mean the same names as the model's outputs.

    Args:
        model: Passes if it has no class names.
        splits: Pass if they have no class names.

    Raises:
        DataError: Both have class names, and these differ.
    """
    if model.labels is not None and splits.labels is not None and model.labels != splits.labels:
        raise DataError(
            "Images and model do not name the same classes in the same order.",
            where=f"images: {_show(splits.labels)}; model: {_show(model.labels)}",
            fix="If equal names mean equal classes, match the data before splitting it: "
            "data = data.with_labels(model.labels).",
        )


def _show(labels: tuple[str, ...]) -> str:
    return "[" + ", ".join(labels[:SHOWN]) + (f", … {len(labels)} in all]" if len(labels) > SHOWN else "]")


def _difference(model: Classifier, data: Data) -> str:
    of_model, of_data = set(model.labels or ()), set(data.labels)
    parts = [("only in the data", of_data - of_model), ("only in the checkpoint", of_model - of_data)]
    return "".join(f"; {title}: {_show(tuple(sorted(names)))}" for title, names in parts if names)
