"""Tables of the desk on a terminal."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from famr.cli.printing import visible


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], whole: Collection[str] = ()) -> None:
    """A table in which user text is text and nothing is cut; the columns of `whole` stay on one line."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(visible(title)), title_justify="left")
    for name in columns:
        table.add_column(Text(name.replace("_", " ")), overflow="fold", no_wrap=name in whole)
    for row in rows:
        table.add_row(*(Text("" if cell is None else visible(str(cell))) for cell in row))
    Console().print(table)
