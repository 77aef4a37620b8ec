"""Matplotlib figures as inline SVG that follows the page's theme, and as PNG.

The same figure always gives the same bytes: matplotlib's defaults instead of the user's settings, fixed ids, no date.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from famr.extras import require_extra

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH = 360.0
"""Width of every figure in points, about that of a phone's screen, so that its text stays readable there."""
COLOURS = {
    "page": "#ffffff",
    "ink": "#1d2329",
    "soft": "#5a6570",
    "line": "#d5dbe1",
    "original": "#6b7580",
    "unlearned": "#1f6f9f",
    "retrained": "#7b4aa8",
    "forget": "#c1440e",
    "retain": "#4f7a1c",
}
"""The light theme of ``page.css``; in SVG each colour becomes the CSS variable of its name, which has a dark value."""
STYLE: dict[Any, Any] = {
    "text.parse_math": False,  # a class may be called $\frac$
    "svg.fonttype": "none",
    "font.size": 12,
    "figure.facecolor": "none",
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.h_pad": 0.06,
    "axes.facecolor": "none",
    "axes.edgecolor": COLOURS["soft"],
    "axes.labelcolor": COLOURS["soft"],
    "axes.titlecolor": COLOURS["ink"],
    "axes.titlelocation": "left",
    "axes.titlesize": "medium",
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": COLOURS["line"],
    "xtick.color": COLOURS["soft"],
    "ytick.color": COLOURS["soft"],
    "ytick.major.size": 0,
    "ytick.major.pad": 9,
    "legend.frameon": False,
    "legend.labelcolor": COLOURS["soft"],
    "lines.linewidth": 2,
    "lines.markersize": 6,
    "path.simplify": False,
}
_COLOUR = re.compile("|".join(COLOURS.values()))
_NAMESPACE = re.compile(r"\{[^}]*\}")


def render_svg(plot: Callable[[], Figure], label: str) -> str:
    """Draw a figure as an ``<svg>`` element for an HTML page.

    Text stays text in the page's font; colours are the page's CSS variables; the ids are unique to the label.

    Args:
        plot: Makes the figure; called with the report's style in force.
        label: What a screen reader announces.

    Raises:
        RequestError: Matplotlib, of the extra ``famr[report]``, is not installed.
    """
    file = io.StringIO()
    with _style(label):
        plot().savefig(file, format="svg", metadata={"Date": None})
    return _inline(file.getvalue(), label)


def render_png(plot: Callable[[], Figure], path: Path) -> None:
    """Draw a figure as a PNG file on white.

    Args:
        plot: Makes the figure; called with the report's style in force.
        path: The file to write.

    Raises:
        RequestError: Matplotlib, of the extra ``famr[report]``, is not installed.
    """
    with _style(""):
        plot().savefig(path, format="png", dpi=150, facecolor=COLOURS["page"], metadata={"Software": None})


@contextmanager
def _style(salt: str) -> Iterator[None]:
    require_extra("matplotlib", "report")
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({**STYLE, "svg.hashsalt": salt})
        # The reader's browser chooses the font, which may have the character.
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        yield


def _inline(document: str, label: str) -> str:
    """An SVG document as an element of HTML, without namespaces, metadata, style sheet and unused ids."""
    root = ElementTree.fromstring(document)
    referenced = set(re.findall(r'(?:href="|url\()#(\w+)', document))
    for element in root.iter():
        for child in list(element):
            if _NAMESPACE.sub("", child.tag) in ("metadata", "style"):
                element.remove(child)
        element.tag = _NAMESPACE.sub("", element.tag)
        element.attrib = {
            _NAMESPACE.sub("", name): _COLOUR.sub(_variable, value) if name == "style" else value
            for name, value in element.attrib.items()
            if name != "id" or value in referenced
        }
    root.attrib = {"viewBox": root.attrib["viewBox"], "role": "img", "aria-label": label}
    return ElementTree.tostring(root, encoding="unicode")


def _variable(colour: re.Match[str]) -> str:
    name = next(name for name, value in COLOURS.items() if value == colour[0])
    return f"var(--{name})"
