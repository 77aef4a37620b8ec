"""Markdown that the pages of all result files share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def markdown_table(rows: Sequence[tuple[str, ...]]) -> str:
    """A Markdown table; the first row is its head."""
    head, *body = rows
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in body])


def page_head(title: str, name: str, more: str = "") -> tuple[str, str]:
    """The heading of a page, and the file that it is made from."""
    return f"# {title}", f"Made from `{name}.json` by `make tables`{more}."


def machine_line(content: Mapping[str, Any], *libraries: str) -> str:
    """What the figures were measured on: hardware, versions of libraries and of famr."""
    machine = content["environment"]
    versions = "".join(f", {library} {machine[library]}" for library in (*(libraries or ("torch",)), "famr"))
    return f"Machine: {machine['hardware']}{versions}"
