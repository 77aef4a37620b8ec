"""The frontier as a figure: retained against forget accuracy, one curve an anchor, the methods as points."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import Any

MOST_NAMED = 4
"""Up to so many runs are named above the figure."""
CURVE = re.compile(r"(\w+) anchor, strength (\S+)")
COLOURS = {"l2": "#8a8a8a", "fisher": "#b07d2b", "kfac": "#2a6f97", "function": "#6a8d2f"}
MARKERS = {
    "paper": ("X", "#c1440e"),
    "uniform, free head, 20 images a class": ("P", "#c1440e"),
    "default, sketch only": ("D", "#5b2a86"),
    "default, 20 images a class": ("*", "#5b2a86"),
}


def position(cells: list[dict[str, Any]]) -> tuple[float, float]:
    """Mean forget accuracy in percent, and mean difference of retained accuracy to retraining in points."""
    forgotten = 100 * statistics.fmean(cell["unlearned"]["forget_accuracy"] for cell in cells)
    kept = [cell["unlearned"]["retain_accuracy"] - cell["retrained"]["retain_accuracy"] for cell in cells]
    return forgotten, 100 * statistics.fmean(kept)


def in_common(cells: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The cells of each curve and each marker, only of those classes and seeds that every curve has."""
    by_name: dict[str, dict[str, dict[str, Any]]] = {}
    for cell in cells:
        if "error" not in cell and (CURVE.fullmatch(cell["name"]) or cell["name"] in MARKERS):
            by_name.setdefault(cell["name"], {})[json.dumps((cell["request"], cell["seed"]))] = cell
    curves = [set(found) for name, found in by_name.items() if CURVE.fullmatch(name)]
    shared = set.intersection(*curves) if curves else {case for found in by_name.values() for case in found}
    kept = {name: [cell for case, cell in found.items() if case in shared] for name, found in by_name.items()}
    return {name: found for name, found in kept.items() if found}


def draw_frontier(content: dict[str, Any], file: Path) -> None:
    """A curve for each anchor by its strength, a point for each method."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    by_name = in_common(content["cells"])
    figure = Figure(figsize=(7.6, 4.8), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for anchor, colour in COLOURS.items():
        found = {name: CURVE.fullmatch(name) for name in by_name}
        strengths = sorted((float(match[2]), name) for name, match in found.items() if match and match[1] == anchor)
        points = [position(by_name[name]) for _, name in strengths]
        if points:
            axes.plot(*zip(*points, strict=True), "o-", color=colour, label=f"{anchor} anchor, loose to firm")
    for name, (marker, colour) in MARKERS.items():
        if name in by_name:
            where = position(by_name[name])
            axes.plot(*where, marker, color=colour, markersize=10, linestyle="none", label=name)
    axes.axhline(0, color="black", linewidth=0.8, linestyle=":")
    axes.set_xscale("symlog", linthresh=1)
    axes.set_xlim(-0.15, 100)
    axes.set_xlabel("forget accuracy (%), left is forgotten")
    axes.set_ylabel("retained accuracy − retrained (points)")
    axes.set_xticks([0, 1, 10, 100], ["0", "1", "10", "100"])
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.grid(alpha=0.25)
    cases = {(cell["request"]["classes"][0], cell["seed"]) for found in by_name.values() for cell in found}
    named = ", ".join(f"{name} (seed {seed})" for name, seed in sorted(cases))
    axes.set_title(f"classes and seeds: {named}" if len(cases) <= MOST_NAMED else f"{len(cases)} runs", fontsize=9)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(file, metadata={"Software": None})
