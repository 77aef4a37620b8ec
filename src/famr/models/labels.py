"""One label map for data and checkpoint, or an error that shows both."""

from __future__ import annotations

from dataclasses import replace

from famr.data import Data
from famr.data.splits import Splits
from famr.errors import DataError
from famr.models import Classifier

SHOWN = 8


def match_labels(model: Classifier, data: Data, *, by_name: bool = False) -> tuple[Classifier, Data]:
    """Model and data with the same class names in the same order.

    A checkpoint without names takes those of the data, if there are as many as its head has outputs. With
    `by_name` the same names in another order are matched by name.
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
    """Refuse images whose class indices mean other names than the model's outputs."""
    if model.labels is not None and splits.labels is not None and model.labels != splits.labels:
        raise DataError(
            "Images and model do not name the same classes in the same order.",
            where=f"images: {_show(splits.labels)}; model: {_show(model.labels)}",
            fix="Bring them together first: model, data = famr.match_labels(model, data).",
        )


def _show(labels: tuple[str, ...]) -> str:
    return "[" + ", ".join(labels[:SHOWN]) + (f", … {len(labels)} in all]" if len(labels) > SHOWN else "]")


def _difference(model: Classifier, data: Data) -> str:
    ours, theirs = set(model.labels or ()), set(data.labels)
    parts = [("only in the data", theirs - ours), ("only in the checkpoint", ours - theirs)]
    return "".join(f"; {words}: {_show(tuple(sorted(names)))}" for words, names in parts if names)
