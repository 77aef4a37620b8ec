"""A run of `famr bench speed` as a figure: a panel a question, of those that were asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from famr.bench.speed import done
from famr.report.escaping import visible

COLOURS = {"floor": "#8a8a8a", "ours": "#2a6f97", "plain": "#c1440e"}
MARKERS = ("o", "s", "^", "D", "v", "P")
SHADES = ("#2a6f97", "#c1440e", "#6a8d2f", "#5b2a86", "#d99a2b", "#1b3a57")
WIDE = 20
"""Times that differ by more than this factor are drawn on a logarithmic scale."""
Draw = Callable[[Any, Mapping[str, Any]], None]


def panels(content: Mapping[str, Any]) -> list[Draw]:
    """What there is to draw."""
    found: list[Draw] = []
    if done(content, "loops"):
        found.append(_loops)
    if done(content, "growth"):
        found += [_with_forget, _with_data]
    if done(content, "alternatives"):
        found += [_equal_passes, _equal_result]
    return found


def draw_speed(content: Mapping[str, Any], file: Path) -> None:
    """The figure as a PNG, of a run that left something to draw."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawn = panels(content)
    columns = min(3, len(drawn))
    rows = -(-len(drawn) // columns)
    figure = Figure(figsize=(5.0 * columns, 4.0 * rows + 0.4), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    for place, draw in enumerate(drawn, start=1):
        axes = figure.add_subplot(rows, columns, place)
        draw(axes, content)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        axes.grid(alpha=0.25)
        axes.set_axisbelow(True)
    machine, settings = content["environment"], content["settings"]
    figure.suptitle(
        visible(f"famr bench speed: {machine['hardware']}, threads: {machine['threads']}, {settings['precision']}"),
        fontsize=10,
        parse_math=False,
    )
    figure.savefig(file, format="png", metadata={"Software": None})


def _loops(axes: Any, content: Mapping[str, Any]) -> None:
    records = done(content, "loops")
    labels = {"floor": "floor", "ours": "ours", "plain": "plain loop"}
    shown = [name for name in labels if any(_seconds(each["result"], name) for each in records)]
    width = 0.26
    for place, name in enumerate(shown):
        heights, label = [_seconds(each["result"], name) for each in records], labels[name]
        at = [number + (place - (len(shown) - 1) / 2) * width for number in range(len(records))]
        bars = axes.bar(at, [height or 0.0 for height in heights], width, color=COLOURS[name], label=label)
        axes.bar_label(bars, [f"{height:.3g}" if height else "" for height in heights], fontsize=8, padding=2)
    known = [s for each in records for name in COLOURS if (s := _seconds(each["result"], name))]
    far_apart = max(known) > WIDE * min(known)
    if far_apart:
        axes.set_yscale("log")
        axes.set_ylim(min(known) / 2, max(known) * 6)
    else:
        axes.set_ylim(0, 1.4 * max(known))
    axes.set_xticks(range(len(records)), [visible(each["model"]) for each in records])
    passes = records[0]["result"]["sample_passes"]
    axes.set_ylabel("seconds (log scale)" if far_apart else "seconds")
    axes.set_title(f"{passes:,} sample passes, median call", fontsize=10)
    axes.legend(frameon=False, fontsize=8, loc="upper left")


def _seconds(result: Mapping[str, Any], name: str) -> float | None:
    found: float | None = result["floor"] if name == "floor" else result[name]["median"]
    return found


def _with_forget(axes: Any, content: Mapping[str, Any]) -> None:
    _growth(axes, content, "with_forget", "images to forget", "cost by what is forgotten; dotted: proportional")
    for place, each in enumerate(done(content, "growth")):
        last = each["result"]["with_forget"]["points"][-1]
        counts = [point["images"] for point in each["result"]["with_forget"]["points"]]
        line = [last["seconds"] * count / last["images"] for count in counts]
        axes.plot(counts, line, ":", color=SHADES[place % len(SHADES)], linewidth=1)


def _with_data(axes: Any, content: Mapping[str, Any]) -> None:
    _growth(axes, content, "with_data", "retained images", "cost by what is retained")
    points = [point["seconds"] for each in done(content, "growth") for point in each["result"]["with_data"]["points"]]
    if max(points) <= WIDE * min(points):
        axes.set_yscale("linear")
        axes.set_ylim(0, 1.4 * max(points))


def _growth(axes: Any, content: Mapping[str, Any], part: str, across: str, title: str) -> None:
    for place, each in enumerate(done(content, "growth")):
        points = each["result"][part]["points"]
        axes.plot(
            [point["images"] for point in points],
            [point["seconds"] for point in points],
            marker=MARKERS[place % len(MARKERS)],
            color=SHADES[place % len(SHADES)],
            label=visible(each["model"]),
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("")
    axes.set_xlabel(across)
    axes.set_ylabel("seconds of the steps")
    axes.set_title(title, fontsize=10)
    legend = axes.legend(frameon=False, fontsize=8)
    for text in legend.get_texts():
        text.set_parse_math(False)


def _equal_passes(axes: Any, content: Mapping[str, Any]) -> None:
    found = done(content, "alternatives")[0]["result"]["equal_passes"]
    rows = found["rows"]
    _bars(axes, [(row["method"], row["seconds"], True) for row in rows])
    axes.set_title(f"digits: seconds of {found['sample_passes']:,} sample passes", fontsize=10)


def _equal_result(axes: Any, content: Mapping[str, Any]) -> None:
    rows = done(content, "alternatives")[0]["result"]["equal_result"]["rows"]
    _bars(axes, [(row["method"], row["seconds"], row["reached"]) for row in rows])
    axes.set_title("digits: seconds to the same result (pale: never got there)", fontsize=10)


def _bars(axes: Any, rows: list[tuple[str, float, bool]]) -> None:
    """Lying bars, ours in its own colour; pale where the seconds led nowhere."""
    for place, (name, seconds, reached) in enumerate(reversed(rows)):
        colour = COLOURS["ours"] if name.startswith("FAMR") else COLOURS["plain"]
        bars = axes.barh(place, seconds, color=colour, alpha=1.0 if reached else 0.3)
        axes.bar_label(bars, [f"{seconds:.2f}"], fontsize=8, padding=2)
    axes.set_yticks(range(len(rows)), [visible(name) for name, _, _ in reversed(rows)], fontsize=8)
    axes.set_xlim(0, 1.15 * max(seconds for _, seconds, _ in rows))
    axes.set_xlabel("seconds")
