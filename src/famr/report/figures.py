"""The figures of a report: forgetting over the epochs, how sure the answers are, who paid, and where the run ended."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from famr.audit.class_changes import ClassChange
from famr.metrics.tables import in_percent
from famr.report.content import Drawing, Table
from famr.report.escaping import visible
from famr.report.svg import LEFT, WIDTH, Panel, bar, drawing, line, mark, path, short, text, ticks

BINS = 20
MOST_CLASSES = 15
KINDS = {"original": "original", "unlearned": "unlearned", "retrained": "retrained"}

Row = Mapping[str, Any]


def forgetting(history: Sequence[Row]) -> Drawing:
    """KL to the original above, accuracies below, over the epochs, as in the paper's figures."""
    epochs = [row["epoch"] for row in history]
    across = (0.0, float(max(epochs[-1], 1)))
    kl = [row["forget_kl"] for row in history]
    upper = Panel(top=28, height=110, xs=across, ys=(0.0, 1.08 * max([*kl, 1e-9])))
    lower = Panel(top=176, height=130, xs=across, ys=(-2.0, 102.0))
    whole = [value for value in ticks(*across) if value == int(value)]
    parts = [
        text(0, 14, "KL to the original, nats", "title"),
        *upper.frame(ticks(*upper.ys, 3), whole, x_numbers=False),
    ]
    parts.append(path(((upper.x(x), upper.y(y)) for x, y in zip(epochs, kl, strict=True)), "unlearned"))
    parts += [mark(upper.x(x), upper.y(y), "unlearned") for x, y in zip(epochs, kl, strict=True)]
    parts += [text(0, 164, "accuracy, %", "title"), *lower.frame([0, 25, 50, 75, 100], whole)]
    drawn = {}
    for name, words, shape in (("forget", "forget set", "circle"), ("retain", "held-out retained", "square")):
        values = [row[f"{name}_accuracy"] for row in history]
        if None not in values:
            drawn[name] = (words, shape)
            points = [(lower.x(x), lower.y(100 * y)) for x, y in zip(epochs, values, strict=True)]
            parts += [path(points, name), *(mark(x, y, name, shape) for x, y in points)]
    parts.append(text(LEFT + lower.width / 2, lower.bottom + 36, "epoch", "tick", anchor="middle"))
    parts += _legend([(words, name, shape) for name, (words, shape) in drawn.items()], lower.bottom + 60)
    columns = ("epoch", "KL, nats", "For-Acc, %", "Ret-Acc, %", "Ent, nats", "drift")
    rows = tuple(
        (
            str(row["epoch"]),
            f"{row['forget_kl']:.3f}",
            in_percent("accuracy", row["forget_accuracy"]),
            in_percent("accuracy", row["retain_accuracy"]),
            f"{row['forget_entropy']:.3f}",
            f"{row['drift']:.4g}",
        )
        for row in history
    )
    return Drawing(
        "Forgetting over the epochs",
        "How far the answers on the forget set have moved from the original's, and the accuracy on what is forgotten "
        "and on some of the held-out images of what stays. Epoch 0 is before the first step.",
        drawing(parts, lower.bottom + 70, "KL divergence and accuracies over the epochs"),
        Table("Forgetting over the epochs", columns, rows, words=0),
    )


def shares(values: Sequence[float], most: float) -> list[float]:
    """The share of values in each of `BINS` equal bins from 0 to `most`, in percent.

    >>> found = shares([0.0, 0.01, 1.0, 1.0], 1.0)
    >>> found[0], found[-1], sum(found)
    (50.0, 50.0, 100.0)
    """
    counts = [0] * BINS
    for value in values:
        counts[min(int(value / most * BINS), BINS - 1)] += 1
    return [100 * count / len(values) for count in counts]


def entropies(found: Mapping[str, Sequence[float]], classes: int) -> Drawing:
    """A histogram a model: the entropy of its answers on the forget set, from sure (0) to uniform (ln C)."""
    most = math.log(classes)
    binned = {name: shares(values, most) for name, values in found.items()}
    tallest = max(max(values) for values in binned.values())
    parts, panel = [], None
    for place, (name, values) in enumerate(binned.items()):
        panel = Panel(top=26 + place * 110, height=72, xs=(0.0, most), ys=(0.0, 1.05 * tallest))
        parts.append(text(0, panel.top - 12, f"{name}: share of the forget images, %", "title"))
        last = place == len(binned) - 1
        parts += panel.frame(ticks(*panel.ys, 3), ticks(0.0, most), x_numbers=last)
        width = panel.width / BINS
        parts += [
            bar(panel.left + k * width + 0.5, panel.y(share), width - 1, panel.bottom - panel.y(share), KINDS[name])
            for k, share in enumerate(values)
            if share
        ]
        parts.append(line(panel.x(most), panel.top, panel.x(most), panel.bottom, "bound"))
    assert panel is not None
    words = f"entropy of the answer, nats (uniform: ln {classes} = {most:.2f})"
    parts.append(text(panel.left + panel.width / 2, panel.bottom + 36, words, "tick", anchor="middle"))
    edges = [k * most / BINS for k in range(BINS + 1)]
    rows = tuple(
        (f"{edges[k]:.2f} to {edges[k + 1]:.2f}", *(f"{values[k]:.1f}" for values in binned.values()))
        for k in range(BINS)
    )
    reference = (
        "The retrained model never saw the data; the nearer the unlearned one looks to it, the better."
        if "retrained" in found
        else "No retrained model was given, which would show how a model looks that never saw the data."
    )
    return Drawing(
        "How sure the answers on the forget set are",
        f"Left is sure, right is undecided. {reference} Predictions that are all uniform tell that something was done.",
        drawing(parts, panel.bottom + 46, "Histograms of the entropy of the answers on the forget set"),
        Table("Share of the forget images, %, by entropy, nats", ("entropy", *binned), rows),
    )


def who_paid(changes: Sequence[ClassChange], labels: Sequence[str]) -> Drawing:
    """Held-out accuracy of each class that stays, before and after; the one that lost most first."""
    shown = changes[:MOST_CLASSES]
    gutter, step = 108.0, 22.0
    values = [100 * value for change in shown for value in (change.before, change.after)]
    low = 10.0 * math.floor(min(values) / 10 - 1e-9) if min(values) > 0 else 0.0
    panel = Panel(
        top=26, height=step * len(shown), xs=(max(low, 0.0), 100.0), ys=(0, 1), left=gutter, width=WIDTH - gutter - 18
    )
    parts = [text(0, 14, "held-out accuracy, %", "title"), *panel.frame([], ticks(*panel.xs))]
    for place, change in enumerate(shown):
        y = panel.top + step * (place + 0.5)
        before, after = panel.x(100 * change.before), panel.x(100 * change.after)
        name = short(visible(labels[change.target]), 15)
        parts.append(text(gutter - 10, y + 4, name, "tick", anchor="end"))
        parts.append(line(panel.left, y, panel.left + panel.width, y, "grid"))
        parts.append(line(before, y, after, y, "change"))
        parts += [mark(before, y, "original", "hollow"), mark(after, y, "unlearned")]
    marks = [("before", "original", "hollow"), ("after", "unlearned", "circle")]
    parts += _legend(marks, panel.bottom + 44)
    rows = tuple(
        (
            labels[change.target],
            str(change.images),
            f"{100 * change.before:.1f}",
            f"{100 * change.after:.1f}",
            f"{100 * change.change:+.1f}",
        )
        for change in changes
    )
    left_out = f" The {len(shown)} that lost most, of {len(changes)}." if len(changes) > len(shown) else ""
    return Drawing(
        "What the classes that stay have lost",
        f"Accuracy on held-out images, class by class, the one that lost most first.{left_out}",
        drawing(parts, panel.bottom + 56, "Held-out accuracy of each class before and after"),
        Table("Held-out accuracy by class", ("class", "images", "before, %", "after, %", "change, points"), rows),
    )


def frontier(history: Sequence[Row], metrics: Mapping[str, Row | None]) -> Drawing | None:
    """The way from the original to the result between forgetting and keeping, and where a retrained model stands.

    A run is followed on some held-out images; where it began and ended was measured on all.
    """
    points = [_standing(row) for row in history]
    if any(None in point for point in points):
        return None
    measured = {name: _standing(row) for name, row in metrics.items() if name in KINDS and row is not None}
    measured = {name: point for name, point in measured.items() if None not in point}
    if len(points) > 1:
        points = [measured.get("original", points[0]), *points[1:-1], measured.get("unlearned", points[-1])]
    known = [*points, *([measured["retrained"]] if "retrained" in measured else [])]
    kept = [100 * y for _, y in known]
    margin = max(1.0, 0.15 * (max(kept) - min(kept)))
    panel = Panel(
        top=26, height=190, xs=(-4.0, 104.0), ys=(max(min(kept) - margin, -2.0), min(max(kept) + margin, 101.0))
    )
    places = [(panel.x(100 * x), panel.y(100 * y)) for x, y in points]
    parts = [text(0, 14, "held-out retained accuracy, %", "title")]
    parts += [*panel.frame(ticks(*panel.ys, 4), [0, 25, 50, 75, 100]), path(places, "way")]
    parts += [mark(*places[0], "original", "hollow"), mark(*places[-1], "unlearned")]
    marks = [("original", "original", "hollow"), ("unlearned", "unlearned", "circle")]
    if len(known) > len(points):
        parts.append(mark(panel.x(100 * known[-1][0]), panel.y(100 * known[-1][1]), "retrained", "diamond"))
        marks.append(("retrained", "retrained", "diamond"))
    words = "forget accuracy, %: left is forgotten"
    parts.append(text(panel.left + panel.width / 2, panel.bottom + 36, words, "tick", anchor="middle"))
    parts += _legend(marks, panel.bottom + 60)
    named = {"original": known[0], "unlearned": points[-1]} | ({"retrained": known[-1]} if len(marks) == 3 else {})
    return Drawing(
        "Between forgetting and keeping",
        "Each bend of the line is an epoch, measured on some of the held-out images. Up is kept, left is forgotten"
        + ("; the diamond is a model trained without the forget set." if len(marks) == 3 else "."),
        drawing(parts, panel.bottom + 70, "Retained accuracy against forget accuracy from the original to the result"),
        Table(
            "Where the models stand",
            ("model", "For-Acc, %", "Ret-Acc, %"),
            tuple((name, *(in_percent("accuracy", value) for value in point)) for name, point in named.items()),
        ),
    )


def _standing(row: Row) -> tuple[Any, Any]:
    return row["forget_accuracy"], row["retain_accuracy"]


def _legend(marks: Sequence[tuple[str, str, str]], y: float) -> list[str]:
    parts, x = [], LEFT
    for words, kind, shape in marks:
        parts += [mark(x + 4, y - 4, kind, shape), text(x + 14, y, words, "tick")]
        x += 34 + 6.6 * len(words)
    return parts
