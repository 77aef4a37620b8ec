"""What to forget: a request, and how a file names its samples."""

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


@dataclass(frozen=True)
class Request:
    """Exactly one of: classes by name, samples by index, id or path, a concept, a style (column, value).

    Without any of them it stands for images that were handed over as the whole forget set.

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
        parts = (*self.classes, *(self.concept or ()), *(self.style or ()))
        wrong = [part for part in parts if not isinstance(part, str)]
        wrong += [sample for sample in self.samples if isinstance(sample, bool) or not isinstance(sample, str | int)]
        if wrong:
            raise RequestError(f"A request names things by text, samples by text or number, got {wrong[0]!r}.")
        given = [name for name in ("classes", "samples", "concept", "style") if getattr(self, name)]
        if len(given) > 1:
            raise RequestError(
                f"A request names one kind of thing to forget, got {' and '.join(given)}.",
                fix="Make one request after the other.",
            )
        named = [str(name) for name in (*self.classes, *self.samples)]
        if twice := [name for name, count in Counter(named).items() if count > 1]:
            raise RequestError(f"The request names something twice: {', '.join(twice[:SHOWN])}.", fix="Name each once.")

    @property
    def kind(self) -> Kind:
        """Which of the four it is; "images" when the forget set was handed over whole."""
        if self.classes:
            return "class"
        if self.samples:
            return "samples"
        if self.concept:
            return "concept"
        return "style" if self.style else "images"

    def describe(self) -> str:
        """In a few words, for people."""
        if self.classes:
            return f"class {self.classes[0]}" if len(self.classes) == 1 else f"classes {', '.join(self.classes)}"
        if self.samples:
            return so_many_samples(len(self.samples))
        pair = self.concept or self.style
        return f"{self.kind} {pair[0]}={pair[1]}" if pair else "the given images"

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        pair = self.concept or self.style
        if pair:
            return {"kind": self.kind, "column": pair[0], "value": pair[1]}
        if self.classes:
            return {"kind": self.kind, "classes": list(self.classes)}
        return {"kind": self.kind, "samples": list(self.samples)} if self.samples else {"kind": self.kind}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Request:
        """The inverse of `to_json`."""
        pair = (values["column"], values["value"]) if "column" in values else None
        return cls(
            classes=values.get("classes", ()),
            samples=values.get("samples", ()),
            concept=pair if values["kind"] == "concept" else None,
            style=pair if values["kind"] == "style" else None,
        )


def read_samples(path: Path) -> list[str]:
    """Sample names from a text file (one a line) or a CSV (a column named id, index, file_name, path or sample)."""
    if not path.is_file():
        raise RequestError("There is no such file of samples.", where=str(path), fix="Check the path.")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise RequestError("The file of samples is not UTF-8 text.", where=str(path), fix="Save it so.") from error
    if path.suffix.lower() != ".csv":
        names = [line.strip() for line in text.splitlines()]
    else:
        rows = [row for row in csv.reader(text.splitlines()) if any(cell.strip() for cell in row)]
        header = [cell.strip().lower() for cell in rows[0]] if rows else []
        column = next((header.index(name) for name in ID_COLUMNS if name in header), None)
        if column is None and header and len(header) > 1:
            raise RequestError(
                "It is not clear which column names the samples.",
                where=f"{path}: columns {', '.join(rows[0])}",
                fix=f"Call it one of {', '.join(ID_COLUMNS)}.",
            )
        cell = column or 0
        names = [row[cell].strip() if cell < len(row) else "" for row in (rows if column is None else rows[1:])]
        if "" in names:
            raise RequestError(
                "A row names no sample.", where=f"{path}: row {names.index('') + 1}", fix="Fill it in, or remove it."
            )
    names = [name for name in names if name]
    if not names:
        raise RequestError("The file names no samples.", where=str(path), fix="Put one id, index or path a line.")
    return names


def so_many_samples(count: int) -> str:
    """For people.

    >>> so_many_samples(1), so_many_samples(2)
    ('1 sample', '2 samples')
    """
    return f"{count} sample" if count == 1 else f"{count} samples"
