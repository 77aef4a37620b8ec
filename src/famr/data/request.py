"""What to forget: a request, and files that list samples."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from famr.errors import RequestError

Kind = Literal["class", "samples", "concept", "style", "images"]
ID_COLUMNS = ("id", "index", "file_name", "path", "sample")
SHOWN = 5
"""Names that an error lists."""


@dataclass(frozen=True)
class Request:
    """What to forget: exactly one of classes, samples, a concept or a style.

    Without any of them it stands for images that were passed as the whole forget set.

    Attributes:
        classes: Class names.
        samples: Each an index in the training images, an id, or a path that ends like exactly one id.
        concept: (column, value): all images with this value in this column.
        style: (column, value), likewise; forgotten as a style, by Gram matrices.

    Raises:
        RequestError: Several of the four are given, something is named twice, or a name has the wrong type.

    >>> Request(classes=["apple"]).describe()
    'class apple'
    >>> Request(concept=("superclass", "fish")).to_json()
    {'kind': 'concept', 'column': 'superclass', 'value': 'fish'}
    """

    classes: Sequence[str] = ()
    samples: Sequence[str | int] = ()
    concept: tuple[str, str] | None = None
    style: tuple[str, str] | None = None

    def __post_init__(self) -> None:
        for name in ("classes", "samples"):
            value = getattr(self, name)
            if isinstance(value, str):
                raise RequestError(f"`{name}` must be a list of names, got the text {value!r}.", fix=f"[{value!r}]")
            object.__setattr__(self, name, tuple(value))
        names = (*self.classes, *(self.concept or ()), *(self.style or ()))
        wrong = [name for name in names if not isinstance(name, str)]
        wrong += [sample for sample in self.samples if isinstance(sample, bool) or not isinstance(sample, str | int)]
        if wrong:
            raise RequestError(
                f"Classes, columns and values must be text, samples text or integers, got {wrong[0]!r}.",
                fix="Write a name as text, an index as an integer.",
            )
        given = [name for name in ("classes", "samples", "concept", "style") if getattr(self, name)]
        if len(given) > 1:
            raise RequestError(
                f"A request names one kind of thing to forget, got {' and '.join(given)}.",
                fix="Make one request after the other.",
            )
        counts = Counter(str(name) for name in (*self.classes, *self.samples))
        if duplicates := [name for name, count in counts.items() if count > 1]:
            raise RequestError(
                f"The request names something twice: {', '.join(duplicates[:SHOWN])}.", fix="Name each once."
            )

    @property
    def kind(self) -> Kind:
        """Which of the four it is; `images` where the forget set was passed whole."""
        if self.classes:
            return "class"
        if self.samples:
            return "samples"
        if self.concept:
            return "concept"
        return "style" if self.style else "images"

    def describe(self) -> str:
        """A short description."""
        if self.classes:
            return f"class {self.classes[0]}" if len(self.classes) == 1 else f"classes {', '.join(self.classes)}"
        if self.samples:
            return describe_samples(len(self.samples))
        pair = self.concept or self.style
        return f"{self.kind} {pair[0]}={pair[1]}" if pair else "the given images"

    def to_json(self) -> dict[str, Any]:
        """As stored in run.json."""
        pair = self.concept or self.style
        if pair:
            return {"kind": self.kind, "column": pair[0], "value": pair[1]}
        if self.classes:
            return {"kind": self.kind, "classes": list(self.classes)}
        return {"kind": self.kind, "samples": list(self.samples)} if self.samples else {"kind": self.kind}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Request:
        """The inverse of `to_json`.

        Args:
            values: What `to_json` returned.
        """
        pair = (values["column"], values["value"]) if "column" in values else None
        return cls(
            classes=values.get("classes", ()),
            samples=values.get("samples", ()),
            concept=pair if values["kind"] == "concept" else None,
            style=pair if values["kind"] == "style" else None,
        )


def read_samples(path: Path) -> list[str]:
    """Sample names from a file.

    Args:
        path: A text file with one name per line, or a CSV with a column named id, index, file_name, path or sample; a
            CSV of one column needs no header.

    Returns:
        The names in the order of the file; blank lines are ignored.

    Raises:
        RequestError: The file is missing, not UTF-8, lists no samples, or has no such column.
    """
    if not path.is_file():
        raise RequestError("There is no such file of samples.", where=str(path), fix="Check the path.")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise RequestError(
            "The file of samples is not UTF-8 text.", where=str(path), fix="Save it as UTF-8."
        ) from error
    lines = text.splitlines()
    names = _csv_samples(lines, path) if path.suffix.lower() == ".csv" else [line.strip() for line in lines]
    names = [name for name in names if name]
    if not names:
        raise RequestError("The file names no samples.", where=str(path), fix="Put one id, index or path a line.")
    return names


def _csv_samples(lines: list[str], path: Path) -> list[str]:
    rows = [row for row in csv.reader(lines) if any(cell.strip() for cell in row)]
    header = [cell.strip().lower() for cell in rows[0]] if rows else []
    column = next((header.index(name) for name in ID_COLUMNS if name in header), None)
    if column is None and len(header) > 1:
        raise RequestError(
            "It is not clear which column names the samples.",
            where=f"{path}: columns {', '.join(rows[0])}",
            fix=f"Call it one of {', '.join(ID_COLUMNS)}.",
        )
    if column is None:
        column, body = 0, rows
    else:
        body = rows[1:]
    names = [row[column].strip() if column < len(row) else "" for row in body]
    if "" in names:
        raise RequestError(
            "A row names no sample.", where=f"{path}: row {names.index('') + 1}", fix="Fill it in, or remove it."
        )
    return names


def describe_samples(count: int) -> str:
    """A number of samples as text.

    Args:
        count: How many.

    >>> describe_samples(1), describe_samples(2)
    ('1 sample', '2 samples')
    """
    return f"{count} sample" if count == 1 else f"{count} samples"
