"""A report as one HTML file: no script, nothing loaded, light and dark, for a desktop, a phone and paper."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any

from famr._version import __version__
from famr.extras import require_extra
from famr.report.content import Report
from famr.report.escaping import visible

DIGEST = re.compile(r"[0-9a-f]{64}")
VERDICT_CLASSES = {"pass": "pass", "fail": "fail", "cannot tell": "unsure"}
"""CSS class of each verdict."""


def as_html(report: Report) -> str:
    """Render a report with the template ``page.html.jinja``.

    Every text is escaped, non-printable characters included; only the style sheet and the figures enter as they are.

    Args:
        report: The content.

    Returns:
        The page.

    Raises:
        RequestError: Jinja2, of the extra ``famr[report]``, is not installed.
    """
    require_extra("jinja2", "report")
    from jinja2 import Environment, StrictUndefined

    folder = files("famr.report")
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_printable,
    )
    environment.filters["cell_classes"] = _cell_classes
    template = environment.from_string(folder.joinpath("page.html.jinja").read_text(encoding="utf-8"))
    style = folder.joinpath("page.css").read_text(encoding="utf-8")
    return template.render(report=report, style=style, version=__version__, verdict_classes=VERDICT_CLASSES)


def _printable(value: Any) -> Any:
    """Text with its non-printable characters escaped; what the template marks as safe stays as it is."""
    return visible(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def _cell_classes(cell: str, is_text: bool) -> str:
    """The CSS classes of a table cell.

    >>> _cell_classes("0.034 [0.007, 0.068] cannot tell", False), _cell_classes("compass", True)
    ('unsure', 'word')
    """
    names = ["word"] if is_text else []
    if DIGEST.fullmatch(cell):
        names.append("digest")
    names += [name for verdict, name in VERDICT_CLASSES.items() if f" {cell}".endswith(f" {verdict}")]
    return " ".join(names)
