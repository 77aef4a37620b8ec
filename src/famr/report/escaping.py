"""User text as text: on a terminal, in Markdown and in a table for a spreadsheet. HTML is escaped by Jinja2."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

from famr.runs.card import plain

FORMULA = ("=", "+", "-", "@")


def visible(text: str) -> str:
    """Replace each non-printable character by its escape: control characters, line breaks, marks of text direction.

    >>> print(visible("a\\x1b[2Jb"), visible("two\\nlines"), visible("\\u202egnp.exe"))
    a\\x1b[2Jb two\\nlines \\u202egnp.exe

    Args:
        text: Any text.

    Returns:
        The text on one line.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def in_markdown(text: str) -> str:
    """Escape text for a paragraph or a table cell of Markdown.

    >>> print(in_markdown("<b> $x$ &amp;"))
    \\<b\\> \\$x\\$ \\&amp;

    Args:
        text: Any text.
    """
    return plain(visible(text)).replace("&", "\\&")


def in_csv(cell: str | int | float | None) -> str | int | float:
    """Make a cell that a spreadsheet reads as text, not as a formula; numbers stay numbers.

    >>> in_csv("=cmd|' /C calc'!A0"), in_csv(" @x"), in_csv(-3), in_csv(None)
    ("'=cmd|' /C calc'!A0", "' @x", -3, '')

    Args:
        cell: The value; None is an empty cell.
    """
    if cell is None:
        return ""
    if not isinstance(cell, str):
        return cell
    shown = visible(cell)
    return f"'{shown}" if shown.lstrip().startswith(FORMULA) else shown


def as_csv(columns: Sequence[str], rows: Iterable[Sequence[str | int | float | None]]) -> str:
    """Write a table as CSV (RFC 4180, except that lines end with a line feed).

    >>> as_csv(["name", "n"], [["=1+1", 2]])
    "name,n\\n'=1+1,2\\n"

    Args:
        columns: The heading.
        rows: The cells, as many in each row as there are columns.
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([in_csv(cell) for cell in row] for row in rows)
    return file.getvalue()
