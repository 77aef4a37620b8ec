"""The paper's figures from a result file: KL, entropy and accuracies epoch by epoch, with confidence bands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any, NamedTuple

from famr.bench.contenders import PAPER
from famr.bench.paper_setting import LARGE, SMALL, cells_of
from famr.bench.statistics import Mean, mean_of
from famr.bench.tables import done
from famr.errors import RequestError
from famr.report.escaping import visible

COLOURS = {"ViT-Ti": "#c1440e", "ViT-S": "#d99a2b", "ViT-B": "#2a6f97", "ViT-L": "#1b3a57"}
MARKED = 16
"""Markers of a line at most; one an epoch, where there are no more."""
MARKERS = {"ViT-Ti": "o", "ViT-S": "s", "ViT-B": "^", "ViT-L": "D"}
CORNERS = ((5, 5), (-12, 5), (5, 14), (-12, 22))
"""Where the number of an epoch stands beside its marker, in points; curves that end at one place take turns."""
LABELS = {
    "epoch": "epoch",
    "forget_kl": "KL to the original (nats)",
    "forget_entropy": "entropy on the forget set (nats)",
    "forget_accuracy": "forget accuracy (%)",
    "retain_accuracy": "retained accuracy (%)",
}


class Panel(NamedTuple):
    """What is drawn against what."""

    across: str
    up: str
    against_small: bool = False


FIGURES: dict[int, tuple[str, tuple[Panel, ...]]] = {
    1: (
        "KL and forget accuracy per epoch (the paper's Figure 1)",
        (Panel("epoch", "forget_kl"), Panel("epoch", "forget_accuracy")),
    ),
    2: (
        "Entropy against forget accuracy (the paper's Figures 2 and 3, right)",
        (Panel("forget_accuracy", "forget_entropy"),),
    ),
    3: (
        "KL and entropy against retained accuracy (the paper's Figures 2 and 3, left)",
        (Panel("retain_accuracy", "forget_kl"), Panel("retain_accuracy", "forget_entropy")),
    ),
    4: (
        "Small against large models: forget accuracy against retained accuracy (the paper's Figure 4)",
        (Panel("retain_accuracy", "forget_accuracy", against_small=True),),
    ),
}


class Curve(NamedTuple):
    """The mean of a figure at each epoch, with its interval."""

    size: str
    setting: str
    at: dict[str, list[Mean]]


def curves(content: Mapping[str, Any], method: str = PAPER) -> list[Curve]:
    """One curve for each model: means over classes and seeds at every epoch that all runs reached."""
    found = []
    for run in content["runs"]:
        histories = [
            cell["facts"]["history"]
            for cell in done(cells_of(content, run))
            if cell["method"] == method and cell["facts"].get("history")
        ]
        if not histories:
            continue
        epochs = min(len(rows) for rows in histories)
        at: dict[str, list[Mean]] = {"epoch": [Mean(float(epoch), None, 1) for epoch in range(epochs)]}
        for name in LABELS:
            if name == "epoch":
                continue
            scale = 100 if name.endswith("accuracy") else 1
            values = [
                [scale * rows[epoch][name] for rows in histories if rows[epoch][name] is not None]
                for epoch in range(epochs)
            ]
            means = [mean for some in values if (mean := mean_of(some)) is not None]
            if len(means) == epochs:
                at[name] = means
        found.append(Curve(run["size"], run["setting"], at))
    return found


def require_figure(number: int) -> None:
    """Refuse one that the paper does not have."""
    if number not in FIGURES:
        raise RequestError(f"There is no figure {number}.", where="--figure", fix="Use 1, 2, 3 or 4.")


def draw_figure(content: Mapping[str, Any], number: int, file: Path, method: str = PAPER) -> None:
    """One of the paper's figures as a PNG."""
    require_figure(number)
    found = curves(content, method)
    if not found:
        raise RequestError(
            f"No run of {method!r} has a history to draw.", where="the result file", fix="Run the cells first."
        )
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    title, panels = FIGURES[number]
    width, columns = (8.0, 1) if len(panels) == 1 else (5.4 * len(panels), 2)  # a legend beside itself, where it fits
    figure = Figure(figsize=(width, 4.6 + 0.25 * -(-len(found) // columns)), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    handles: dict[str, Any] = {}
    others = list(dict.fromkeys(curve.setting for curve in found))[1:]
    for place, panel in enumerate(panels, start=1):
        axes = figure.add_subplot(1, len(panels), place)
        for turn, curve in enumerate(found):
            if panel.across in curve.at and panel.up in curve.at:
                hollow, corner = curve.setting in others, CORNERS[turn % len(CORNERS)]
                handles[_label(curve, found, panel)] = _draw(axes, curve, panel, hollow, corner)
        axes.set_xlabel(LABELS[panel.across])
        axes.set_ylabel(LABELS[panel.up])
        axes.grid(alpha=0.25)
        if panel.across == "epoch":
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        if panel.up.endswith("accuracy"):
            axes.set_ylim(-3, 103)
        else:
            axes.set_ylim(bottom=0)
        if panel.across.endswith("accuracy"):
            low, high = axes.get_xlim()
            axes.set_xlim(max(low, -3), min(high, 103))
    bands = "bands" if panels[0].across == "epoch" else "numbers: epochs; bars at both ends"
    of, drawn = f"{content['data']}, {method}; means of classes and seeds", f"{bands}: 95 % intervals"
    figure.suptitle("\n".join(heading(title, visible(of), drawn, int(14 * width))), fontsize=9.5, parse_math=False)
    legend = figure.legend(
        handles=list(handles.values()), labels=list(handles), loc="outside lower center", ncols=columns, frameon=False
    )
    for text in legend.get_texts():
        text.set_parse_math(False)
    figure.savefig(file, format="png", metadata={"Software": None})


def heading(title: str, of: str, drawn: str, width: int) -> list[str]:
    """Lines of at most so many signs: what is drawn stands on a line of its own where it does not fit behind the rest.

    >>> heading("A figure", "some data", "bands: 95 % intervals", 40)
    ['A figure', 'some data; bands: 95 % intervals']
    >>> heading("A figure", "some data", "bands: 95 % intervals", 22)
    ['A figure', 'some data', 'bands: 95 % intervals']
    """
    told = f"{of}; {drawn}"
    return [line for text in (title, *((told,) if len(told) <= width else (of, drawn))) for line in wrap(text, width)]


def _label(curve: Curve, every: Sequence[Curve], panel: Panel) -> str:
    """The size; its setting where there are several; small or large where that is the question."""
    group = f" ({'small' if curve.size in SMALL else 'large'})" if panel.against_small else ""
    several = len({each.setting for each in every}) > 1
    return visible(f"{curve.size}{group}{f', {curve.setting}' if several else ''}")


def _draw(axes: Any, curve: Curve, panel: Panel, hollow: bool, corner: tuple[int, int]) -> Any:
    """A line with markers at epochs; over epochs with a band, else with bars at its ends. Dashed for small models,
    hollow markers for models of another setting than the first."""
    across = [mean.mean for mean in curve.at[panel.across]]
    up = curve.at[panel.up]
    middle = [mean.mean for mean in up]
    colour = COLOURS[curve.size]
    style = "-" if curve.size in LARGE else "--"
    face = "white" if hollow else colour
    (line,) = axes.plot(
        across,
        middle,
        style,
        color=colour,
        marker=MARKERS[curve.size],
        markersize=5,
        markerfacecolor=face,
        markevery=-(-len(across) // MARKED),
    )
    if panel.across == "epoch":
        low = [mean.mean - (mean.half or 0.0) for mean in up]
        high = [mean.mean + (mean.half or 0.0) for mean in up]
        axes.fill_between(across, low, high, color=colour, alpha=0.07, linewidth=0)
        for edge in (low, high):  # where bands lie on each other their edges still tell whose they are
            axes.plot(across, edge, color=colour, alpha=0.5, linewidth=0.8, linestyle=style)
        return line
    for place in (0, len(across) - 1):  # bars at every epoch would hide the lines
        beside = curve.at[panel.across][place]
        axes.errorbar(
            across[place],
            middle[place],
            xerr=beside.half or 0.0,
            yerr=up[place].half or 0.0,
            fmt="none",
            ecolor=colour,
            alpha=0.45,
            capsize=2,
        )
        end = (across[place], middle[place])
        axes.annotate(str(place), end, textcoords="offset points", xytext=corner, color=colour, fontsize=8)
    return line
