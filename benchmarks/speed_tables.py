"""The page and the figure of `famr bench speed`, from its result file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from famr.bench.speed_figure import draw_speed, panels
from famr.bench.speed_page import speed_page
from famr.report.markdown import as_markdown


def speed_markdown(name: str, content: dict[str, Any]) -> str:
    """The page that `famr bench speed` itself writes, with the file it is made from."""
    title, _, rest = as_markdown(speed_page(content)).partition("\n\n")
    return f"{title}: {name.removeprefix('speed-')}\n\nMade from `{name}.json` by `make tables`.\n\n{rest}"


def draw_if_any(content: dict[str, Any], file: Path) -> None:
    """Its figure, where a stage left something to draw."""
    if panels(content):
        draw_speed(content, file)
