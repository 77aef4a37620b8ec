"""The content of a report before it is a page: sections of paragraphs, lists, tables, drawings and thumbnails.

HTML, Markdown and JSON render the same content. All text in it is plain text; each renderer escapes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from famr.audit.verdict import Verdict


@dataclass(frozen=True)
class Text:
    """A paragraph.

    Attributes:
        text: Plain text on one line.
    """

    kind: ClassVar[str] = "text"
    text: str


@dataclass(frozen=True)
class Bullets:
    """A bullet list.

    Attributes:
        lines: Plain text, one line a bullet.
    """

    kind: ClassVar[str] = "bullets"
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        caption: What the table holds, with the units.
        columns: Heading of each column.
        rows: The cells, as many in each row as there are columns.
        words: How many leading columns hold text; the remaining ones hold numbers and are aligned right.
    """

    kind: ClassVar[str] = "table"
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: int = 1


@dataclass(frozen=True)
class Drawing:
    """A figure, and its numbers for readers who cannot see it.

    Attributes:
        title: Heading of the figure.
        description: What it shows and how to read it.
        svg: The figure as an ``<svg>`` element, as `famr.report.rendering.render_svg` returns it.
        numbers: The plotted values.
    """

    kind: ClassVar[str] = "drawing"
    title: str
    description: str
    svg: str
    numbers: Table


@dataclass(frozen=True)
class Thumbnail:
    """A forget image, shown only on request.

    Attributes:
        name: Id of the image in the data.
        png: The image as PNG, in base64.
    """

    name: str
    png: str


@dataclass(frozen=True)
class Thumbnails:
    """Some of the forget images.

    Attributes:
        description: How many are shown, and why.
        images: The images.
    """

    kind: ClassVar[str] = "thumbnails"
    description: str
    images: tuple[Thumbnail, ...]


Block = Text | Bullets | Table | Drawing | Thumbnails


@dataclass(frozen=True)
class Section:
    """A heading and the blocks below it.

    Attributes:
        title: The heading.
        blocks: The content in reading order.
    """

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Report:
    """A whole report.

    Attributes:
        title: Heading of the page.
        outcome: The verdict in one word.
        verdict: The verdict in one sentence.
        sections: The sections in reading order.
        records: The numbers behind the report, as they were stored; part of the JSON only.
    """

    title: str
    outcome: Verdict
    verdict: str
    sections: tuple[Section, ...]
    records: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The report as plain values; a drawing is represented by its numbers."""
        return {
            "title": self.title,
            "outcome": self.outcome,
            "verdict": self.verdict,
            "sections": [
                {"title": section.title, "blocks": [_block_to_json(block) for block in section.blocks]}
                for section in self.sections
            ],
            "records": dict(self.records),
        }


def _block_to_json(block: Block) -> dict[str, Any]:
    values = {"kind": block.kind, **asdict(block)}
    values.pop("svg", None)
    if "description" in values:
        values["says"] = values.pop("description")
    return values
