"""The paper's figures from a result file: KL, entropy and accuracies epoch by epoch, with confidence bands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any, NamedTuple

from benchmarks.paper.setting import LARGE, SMALL, run_cells
from famr.bench.columns import finished_cells
from famr.bench.methods import FAMR_PAPER
from famr.bench.statistics import Mean, mean_of
from famr.errors import RequestError
from famr.report.escaping import visible

COLOURS = {"ViT-Ti": "#c1440e", "ViT-S": "#d99a2b", "ViT-B": "#2a6f97", "ViT-L": "#1b3a57"}
MOST_MARKERS = 16
"""Of a line; one an epoch, where there are no more."""
MARKERS = {"ViT-Ti": "o", "ViT-S": "s", "ViT-B": "^", "ViT-L": "D"}
CORNERS = ((5, 5), (-12, 5), (5, 14), (-12, 22))
"""Offset of an epoch's number from its marker, in points; curves take turns, as several may end at one point."""
LABELS = {
    "epoch": "epoch",
    "forget_kl": "KL to the original (nats)",
    "forget_entropy": "entropy on the forget set (nats)",
    "forget_accuracy": "forget accuracy (%)",
    "retain_accuracy": "retained accuracy (%)",
}


class Axes(NamedTuple):
    """Which quantity is drawn against which."""

    x: str
    y: str
    against_small: bool = False


FIGURES: dict[int, tuple[str, tuple[Axes, ...]]] = {
    1: (
        "KL and forget accuracy per epoch (the paper's Figure 1)",
        (Axes("epoch", "forget_kl"), Axes("epoch", "forget_accuracy")),
    ),
    2: (
        "Entropy against forget accuracy (the paper's Figures 2 and 3, right)",
        (Axes("forget_accuracy", "forget_entropy"),),
    ),
    3: (
        "KL and entropy against retained accuracy (the paper's Figures 2 and 3, left)",
        (Axes("retain_accuracy", "forget_kl"), Axes("retain_accuracy", "forget_entropy")),
    ),
    4: (
        "Small against large models: forget accuracy against retained accuracy (the paper's Figure 4)",
        (Axes("retain_accuracy", "forget_accuracy", against_small=True),),
    ),
}


class EpochMeans(NamedTuple):
    """The mean of each quantity at each epoch, with its interval, for one model."""

    size: str
    setting: str
    at: dict[str, list[Mean]]


def epoch_means(content: Mapping[str, Any], method: str = FAMR_PAPER) -> list[EpochMeans]:
    """One curve for each model: means over classes and seeds at every epoch that all runs reached."""
    found = []
    for run in content["runs"]:
        histories = [
            cell["facts"]["history"]
            for cell in finished_cells(run_cells(content, run))
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
            means = [mean for of_epoch in values if (mean := mean_of(of_epoch)) is not None]
            if len(means) == epochs:
                at[name] = means
        found.append(EpochMeans(run["size"], run["setting"], at))
    return found


def require_figure(number: int) -> None:
    """Refuse a figure that the paper does not have."""
    if number not in FIGURES:
        raise RequestError(f"There is no figure {number}.", where="--figure", fix="Use 1, 2, 3 or 4.")


def draw_figure(content: Mapping[str, Any], number: int, file: Path, method: str = FAMR_PAPER) -> None:
    """One of the paper's figures as a PNG."""
    require_figure(number)
    curves = epoch_means(content, method)
    if not curves:
        raise RequestError(
            f"No run of {method!r} has a history to draw.", where="the result file", fix="Run the cells first."
        )
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    title, panels = FIGURES[number]
    width, columns = (8.0, 1) if len(panels) == 1 else (5.4 * len(panels), 2)  # columns of the legend, as they fit
    figure = Figure(figsize=(width, 4.6 + 0.25 * -(-len(curves) // columns)), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    handles: dict[str, Any] = {}
    for column, panel in enumerate(panels, start=1):
        handles |= _draw_panel(figure.add_subplot(1, len(panels), column), curves, panel)
    bands = "bands" if panels[0].x == "epoch" else "numbers: epochs; bars at both ends"
    data, drawn = f"{content['data']}, {method}; means of classes and seeds", f"{bands}: 95 % intervals"
    figure.suptitle("\n".join(heading(title, visible(data), drawn, int(14 * width))), fontsize=9.5, parse_math=False)
    legend = figure.legend(
        handles=list(handles.values()), labels=list(handles), loc="outside lower center", ncols=columns, frameon=False
    )
    for text in legend.get_texts():
        text.set_parse_math(False)
    figure.savefig(file, format="png", metadata={"Software": None})


def _draw_panel(axes: Any, curves: Sequence[EpochMeans], panel: Axes) -> dict[str, Any]:
    """Every model's curve; the lines by their labels."""
    from matplotlib.ticker import MaxNLocator

    lines = {}
    later_settings = list(dict.fromkeys(curve.setting for curve in curves))[1:]
    for index, curve in enumerate(curves):
        if panel.x in curve.at and panel.y in curve.at:
            hollow, corner = curve.setting in later_settings, CORNERS[index % len(CORNERS)]
            lines[_label(curve, curves, panel)] = _draw_curve(axes, curve, panel, hollow, corner)
    axes.set_xlabel(LABELS[panel.x])
    axes.set_ylabel(LABELS[panel.y])
    axes.grid(alpha=0.25)
    if panel.x == "epoch":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if panel.y.endswith("accuracy"):
        axes.set_ylim(-3, 103)
    else:
        axes.set_ylim(bottom=0)
    if panel.x.endswith("accuracy"):
        low, high = axes.get_xlim()
        axes.set_xlim(max(low, -3), min(high, 103))
    return lines


def heading(title: str, data: str, drawn: str, width: int) -> list[str]:
    """Lines of at most `width` characters; `drawn` gets a line of its own where it does not fit behind `data`.

    >>> heading("A figure", "some data", "bands: 95 % intervals", 40)
    ['A figure', 'some data; bands: 95 % intervals']
    >>> heading("A figure", "some data", "bands: 95 % intervals", 22)
    ['A figure', 'some data', 'bands: 95 % intervals']
    """
    both = f"{data}; {drawn}"
    texts = (both,) if len(both) <= width else (data, drawn)
    return [line for text in (title, *texts) for line in wrap(text, width)]


def _label(curve: EpochMeans, curves: Sequence[EpochMeans], panel: Axes) -> str:
    """The size; its setting where there are several; small or large where these are compared."""
    group = f" ({'small' if curve.size in SMALL else 'large'})" if panel.against_small else ""
    several = len({other.setting for other in curves}) > 1
    return visible(f"{curve.size}{group}{f', {curve.setting}' if several else ''}")


def _draw_curve(axes: Any, curve: EpochMeans, panel: Axes, hollow: bool, corner: tuple[int, int]) -> Any:
    """A line with markers at epochs; over epochs with a band, else with bars at its ends. Dashed for small models,
    hollow markers for models of another setting than the first."""
    x, y = curve.at[panel.x], curve.at[panel.y]
    xs, ys = [mean.mean for mean in x], [mean.mean for mean in y]
    colour = COLOURS[curve.size]
    style = "-" if curve.size in LARGE else "--"
    (line,) = axes.plot(
        xs,
        ys,
        style,
        color=colour,
        marker=MARKERS[curve.size],
        markersize=5,
        markerfacecolor="white" if hollow else colour,
        markevery=-(-len(xs) // MOST_MARKERS),
    )
    if panel.x == "epoch":
        low = [mean.mean - (mean.half_width or 0.0) for mean in y]
        high = [mean.mean + (mean.half_width or 0.0) for mean in y]
        axes.fill_between(xs, low, high, color=colour, alpha=0.07, linewidth=0)
        for edge in (low, high):  # edges make overlapping bands visible
            axes.plot(xs, edge, color=colour, alpha=0.5, linewidth=0.8, linestyle=style)
        return line
    for epoch in (0, len(xs) - 1):  # bars at every epoch would hide the lines
        axes.errorbar(
            xs[epoch],
            ys[epoch],
            xerr=x[epoch].half_width or 0.0,
            yerr=y[epoch].half_width or 0.0,
            fmt="none",
            ecolor=colour,
            alpha=0.45,
            capsize=2,
        )
        end = (xs[epoch], ys[epoch])
        axes.annotate(str(epoch), end, textcoords="offset points", xytext=corner, color=colour, fontsize=8)
    return line
