"""What a report consists of, before it is a page: sections of text, lists, tables and drawings.

HTML, Markdown and JSON are three ways to write the same content. All text is plain text; whoever writes it escapes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Outcome = Literal["pass", "fail", "cannot tell"]


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Bullets:
    """A list."""

    lines: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """A caption that names the units, columns, rows. The first `words` columns hold words, the others figures."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: int = 1


@dataclass(frozen=True)
class Drawing:
    """A figure, what it shows, and its numbers for those who cannot see it."""

    title: str
    says: str
    svg: str
    numbers: Table


@dataclass(frozen=True)
class Thumbnail:
    """A forgotten image, shown only where that was asked for."""

    name: str
    png: str
    """In base64."""


@dataclass(frozen=True)
class Thumbnails:
    """Some of the forgotten images."""

    says: str
    images: tuple[Thumbnail, ...]


Block = Text | Bullets | Table | Drawing | Thumbnails


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Report:
    """The whole report; `records` are the figures behind it as they were stored."""

    title: str
    outcome: Outcome
    verdict: str
    sections: tuple[Section, ...]
    records: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As plain values, a drawing by its numbers."""
        return {
            "title": self.title,
            "outcome": self.outcome,
            "verdict": self.verdict,
            "sections": [
                {"title": section.title, "blocks": [_plain(block) for block in section.blocks]}
                for section in self.sections
            ],
            "records": dict(self.records),
        }


def _plain(block: Block) -> dict[str, Any]:
    values = {"kind": type(block).__name__.lower(), **asdict(block)}
    values.pop("svg", None)
    return values
