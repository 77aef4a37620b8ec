"""User text as text, wherever it is shown: in a terminal, in HTML, in Markdown and in a table for a spreadsheet."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from html import escape

from famr.runs.card import plain

FORMULA = ("=", "+", "-", "@")


def visible(text: str) -> str:
    """Text on one line, with an escape for each character that would not be seen: controls, marks of direction.

    >>> print(visible("a\\x1b[2Jb"), visible("two\\nlines"), visible("\\u202egnp.exe"))
    a\\x1b[2Jb two\\nlines \\u202egnp.exe
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def in_html(text: str) -> str:
    """Text for an element or a quoted attribute.

    >>> in_html('<script>"&')
    '&lt;script&gt;&quot;&amp;'
    """
    return escape(visible(text))


def in_markdown(text: str) -> str:
    """Text for a paragraph or a cell.

    >>> print(in_markdown("<b> $x$ &amp;"))
    \\<b\\> \\$x\\$ \\&amp;
    """
    return plain(visible(text)).replace("&", "\\&")


def in_csv(cell: str | int | float | None) -> str | int | float:
    """A cell that a spreadsheet takes for text, not for a formula; numbers stay numbers.

    >>> in_csv("=cmd|' /C calc'!A0"), in_csv(" @x"), in_csv(-3), in_csv(None)
    ("'=cmd|' /C calc'!A0", "' @x", -3, '')
    """
    if cell is None:
        return ""
    if not isinstance(cell, str):
        return cell
    shown = visible(cell)
    return f"'{shown}" if shown.lstrip().startswith(FORMULA) else shown


def as_csv(columns: Sequence[str], rows: Iterable[Sequence[str | int | float | None]]) -> str:
    """A table with a heading, as RFC 4180 writes it but for the line ends.

    >>> as_csv(["name", "n"], [["=1+1", 2]])
    "name,n\\n'=1+1,2\\n"
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([in_csv(cell) for cell in row] for row in rows)
    return file.getvalue()
