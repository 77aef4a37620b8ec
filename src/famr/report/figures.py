"""The figures of a report: forgetting over the epochs, prediction entropies, accuracy by class, and the trade-off."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from famr.audit.class_changes import ClassChange
from famr.metrics.tables import in_percent
from famr.report.content import Drawing, Table
from famr.report.escaping import visible
from famr.report.rendering import COLOURS, WIDTH, render_png, render_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BINS = 20
MAX_CLASSES = 15
MODELS = ("original", "unlearned", "retrained")
HOLLOW: dict[str, Any] = {
    "marker": "o",
    "markersize": 9,
    "color": COLOURS["original"],
    "markerfacecolor": COLOURS["page"],
    "markeredgewidth": 2,
}
"""The marker of the original model."""
FILLED: dict[str, Any] = {"marker": "o", "color": COLOURS["unlearned"]}
"""The marker of the unlearned model."""
DIAMOND: dict[str, Any] = {"marker": "D", "markersize": 8, "color": COLOURS["retrained"]}
"""The marker of the retrained model."""

Row = Mapping[str, Any]
Point = tuple[float, float]


def draw_epochs(history: Sequence[Row]) -> Drawing:
    """KL divergence to the original and accuracies over the epochs, as in the paper's figures.

    Args:
        history: The rows of ``history.jsonl``, at least two.
    """
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
        "KL divergence of the predictions on the forget set to the original's, and accuracy on the forget set and on a "
        "sample of the held-out retained images. Epoch 0 is before the first step.",
        render_svg(lambda: _plot_epochs(history), "KL divergence and accuracies over the epochs"),
        Table("Forgetting over the epochs", columns, rows, words=0),
    )


def write_epochs(history: Sequence[Row], title: str, path: Path) -> None:
    """Write the figure of `draw_epochs` as a PNG file.

    Args:
        history: The rows of a run's history, at least two.
        title: Printed above the figure.
        path: The file to write.

    Raises:
        RequestError: Matplotlib, of the extra ``famr[report]``, is not installed.
    """
    render_png(lambda: _plot_epochs(history, title), path)


def _plot_epochs(history: Sequence[Row], title: str = "") -> Figure:
    from matplotlib.ticker import MaxNLocator

    figure = _new_figure(330)
    kl, accuracy = figure.subplots(2, sharex=True)
    epochs = [row["epoch"] for row in history]
    kl.set_title("KL to the original, nats")
    kl.plot(epochs, [row["forget_kl"] for row in history], color=COLOURS["unlearned"], marker="o", clip_on=False)
    kl.set_ylim(bottom=0)
    accuracy.set_title("accuracy, %")
    for name, label, style in (("forget", "forget set", "o-"), ("retain", "held-out retained", "s--")):
        values = [row[f"{name}_accuracy"] for row in history]
        if None not in values:
            percent = [100 * value for value in values]
            accuracy.plot(epochs, percent, style, color=COLOURS[name], label=label, clip_on=False)
    accuracy.set_ylim(-2, 102)
    accuracy.set_yticks(range(0, 101, 25))
    accuracy.set_xlabel("epoch")
    accuracy.xaxis.set_major_locator(MaxNLocator(integer=True))
    if title:
        figure.suptitle(visible(title))
    _legend_below(figure, accuracy)
    return figure


def histogram(values: Sequence[float], upper: float) -> list[float]:
    """The share of values in each of `BINS` equal bins, in percent.

    >>> shares = histogram([0.0, 0.01, 1.0, 1.0], 1.0)
    >>> shares[0], shares[-1], sum(shares)
    (50.0, 50.0, 100.0)

    Args:
        values: Numbers from 0 to `upper`.
        upper: The upper edge of the last bin.
    """
    counts = [0] * BINS
    for value in values:
        counts[min(int(value / upper * BINS), BINS - 1)] += 1
    return [100 * count / len(values) for count in counts]


def draw_entropies(entropies: Mapping[str, Sequence[float]], classes: int) -> Drawing:
    """A histogram a model of the entropy of its predictions on the forget set, from 0 (certain) to ln C (uniform).

    Args:
        entropies: Entropy of each forget image in nats, by model.
        classes: The number of classes C.
    """
    upper = math.log(classes)
    shares = {name: histogram(values, upper) for name, values in entropies.items()}
    edges = [index * upper / BINS for index in range(BINS + 1)]
    rows = tuple(
        (
            f"{edges[index]:.2f} to {edges[index + 1]:.2f}",
            *(f"{values[index]:.1f}" for values in shares.values()),
        )
        for index in range(BINS)
    )
    reference = (
        "The closer the unlearned model is to the retrained one, which was not trained on these images, the better."
        if "retrained" in entropies
        else "No retrained model was given, which would show the entropies of a model not trained on these images."
    )
    return Drawing(
        "Entropy of the predictions on the forget set",
        f"Left is certain, right is uniform. {reference} Predictions that are all uniform reveal the unlearning.",
        render_svg(
            lambda: _plot_entropies(shares, edges[:-1], classes), "Histograms of the entropy on the forget set by model"
        ),
        Table("Share of the forget images, %, by entropy, nats", ("entropy", *shares), rows),
    )


def _plot_entropies(shares: Mapping[str, Sequence[float]], edges: Sequence[float], classes: int) -> Figure:
    upper = math.log(classes)
    figure = _new_figure(60 + 105 * len(shares))
    rows = figure.subplots(len(shares), sharex=True, sharey=True, squeeze=False)[:, 0]
    for axes, (name, values) in zip(rows, shares.items(), strict=True):
        axes.set_title(f"{name}: share of the forget images, %")
        style = {"color": COLOURS[name], "edgecolor": COLOURS["page"], "linewidth": 1}
        axes.bar(edges, values, upper / BINS, align="edge", **style)
        axes.axvline(upper, color=COLOURS["soft"], linestyle=":", linewidth=1.5)
    rows[-1].set_xlim(0, upper * 1.01)
    rows[-1].set_xlabel(f"entropy, nats (uniform: ln {classes} = {upper:.2f})")
    return figure


def draw_class_changes(changes: Sequence[ClassChange], labels: Sequence[str]) -> Drawing:
    """Held-out accuracy of each retained class before and after unlearning.

    Args:
        changes: One entry a class, the largest loss first.
        labels: Name of each class of the model, by its index.
    """
    shown = changes[:MAX_CLASSES]
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
    left_out = (
        f" The figure shows the {len(shown)} largest losses of {len(changes)}." if len(changes) > len(shown) else ""
    )
    return Drawing(
        "Accuracy of the retained classes",
        f"Accuracy on held-out images by class, the largest loss first.{left_out}",
        render_svg(lambda: _plot_class_changes(shown, labels), "Held-out accuracy of each class before and after"),
        Table("Held-out accuracy by class", ("class", "images", "before, %", "after, %", "change, points"), rows),
    )


def _plot_class_changes(changes: Sequence[ClassChange], labels: Sequence[str]) -> Figure:
    figure = _new_figure(80 + 23 * len(changes))
    axes = figure.add_subplot()
    before, after = [100 * change.before for change in changes], [100 * change.after for change in changes]
    rows = range(len(changes))
    axes.set_title("held-out accuracy, %")
    axes.hlines(rows, before, after, color=COLOURS["soft"], linewidth=2)
    axes.plot(before, rows, linestyle="", label="before", clip_on=False, **HOLLOW)
    axes.plot(after, rows, linestyle="", label="after", clip_on=False, **FILLED)
    axes.set_yticks(rows, [_shortened(visible(labels[change.target]), 15) for change in changes])
    axes.set_ylim(len(changes) - 0.5, -0.5)
    low = 10.0 * math.floor(min(*before, *after) / 10 - 1e-9)
    axes.set_xlim(max(low, 0.0), 100.0)
    _legend_below(figure, axes)
    return figure


def draw_trade_off(history: Sequence[Row], metrics: Mapping[str, Row | None]) -> Drawing | None:
    """The path of a run between forget accuracy and retain accuracy, with the retrained model beside it.

    Epochs are evaluated on a sample of the held-out images; both ends of the path are replaced by the metrics of the
    run, which were measured on all of them.

    Args:
        history: The rows of ``history.jsonl``.
        metrics: The metrics of each model by its name, as in ``metrics.json``.

    Returns:
        None where the accuracies were not recorded at every epoch.
    """
    path = [_accuracies(row) for row in history]
    measured = {name: _accuracies(row) for name in MODELS if (row := metrics.get(name)) is not None}
    points = [point for point in path if point is not None]
    if len(points) < len(path):
        return None
    if len(points) > 1:
        points[0] = measured.get("original") or points[0]
        points[-1] = measured.get("unlearned") or points[-1]
    retrained = measured.get("retrained")
    models = {"original": points[0], "unlearned": points[-1]} | ({} if retrained is None else {"retrained": retrained})
    rows = tuple((name, *(in_percent("accuracy", value) for value in point)) for name, point in models.items())
    diamond = "" if retrained is None else "; the diamond is a model trained without the forget set"
    return Drawing(
        "Forget accuracy against retain accuracy",
        "Each bend of the line is an epoch, evaluated on a sample of the held-out images. "
        f"Up is retained, left is forgotten{diamond}.",
        render_svg(
            lambda: _plot_trade_off(points, retrained), "Retain accuracy against forget accuracy over the epochs"
        ),
        Table("Accuracies of the models", ("model", "For-Acc, %", "Ret-Acc, %"), rows),
    )


def _plot_trade_off(points: Sequence[Point], retrained: Point | None) -> Figure:
    figure = _new_figure(290)
    axes = figure.add_subplot()
    xs, ys = [100 * x for x, _ in points], [100 * y for _, y in points]
    axes.set_title("held-out retain accuracy, %")
    axes.plot(xs, ys, color=COLOURS["soft"], linewidth=1.5)
    axes.plot(xs[0], ys[0], linestyle="", label="original", **HOLLOW)
    axes.plot(xs[-1], ys[-1], linestyle="", label="unlearned", **FILLED)
    if retrained is not None:
        ys.append(100 * retrained[1])
        axes.plot(100 * retrained[0], ys[-1], linestyle="", label="retrained", **DIAMOND)
    margin = max(1.0, 0.15 * (max(ys) - min(ys)))
    axes.set_xlim(-4, 104)
    axes.set_ylim(max(min(ys) - margin, -2.0), min(max(ys) + margin, 101.0))
    axes.set_xlabel("forget accuracy, %")
    _legend_below(figure, axes)
    return figure


def _accuracies(row: Row) -> Point | None:
    """Forget and retain accuracy of a model, if both are known."""
    forget, retain = row["forget_accuracy"], row["retain_accuracy"]
    return None if forget is None or retain is None else (forget, retain)


def _new_figure(height: float) -> Figure:
    """An empty figure of the report's width; `height` is in points."""
    from matplotlib.figure import Figure

    return Figure(figsize=(WIDTH / 72, height / 72))


def _legend_below(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=max(1, len(labels)))


def _shortened(text: str, length: int) -> str:
    """A long name, cut.

    >>> _shortened("a very long class name", 10)
    'a very lo…'
    """
    return text if len(text) <= length else f"{text[: length - 1]}…"
