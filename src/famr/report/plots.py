"""Figures of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

KL_COLOUR, FORGET_COLOUR, RETAIN_COLOUR = "#2a6f97", "#c1440e", "#6a8d2f"


class _Row(Protocol):
    @property
    def epoch(self) -> int: ...
    @property
    def forget_kl(self) -> float: ...
    @property
    def forget_accuracy(self) -> float | None: ...
    @property
    def retain_accuracy(self) -> float | None: ...


def draw_forgetting(history: Sequence[_Row], title: str, file: Path) -> None:
    """KL divergence and forget accuracy over the epochs, as the paper's Figure 1, with retained accuracy beside."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(7.2, 4.2), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    left = figure.add_subplot()
    right = left.twinx()
    epochs = [row.epoch for row in history]
    lines = left.plot(epochs, [row.forget_kl for row in history], "o-", color=KL_COLOUR, label="KL to the original")
    for name, label, marker, colour in (
        ("forget_accuracy", "forget accuracy", "s--", FORGET_COLOUR),
        ("retain_accuracy", "retained accuracy", "^:", RETAIN_COLOUR),
    ):
        values = [getattr(row, name) for row in history]
        if None not in values:
            percent = [100 * value for value in values]
            lines += right.plot(epochs, percent, marker, color=colour, label=label)
    left.set_xlabel("epoch")
    left.set_ylabel("KL divergence (nats)", color=KL_COLOUR)
    right.set_ylabel("accuracy (%)")
    right.set_ylim(-3, 103)
    left.set_ylim(bottom=0)
    left.xaxis.set_major_locator(MaxNLocator(integer=True))
    left.set_title(_quoted(title), parse_math=False)
    left.spines["top"].set_visible(False)
    right.spines["top"].set_visible(False)
    left.grid(alpha=0.25)
    left.legend(handles=lines, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3, frameon=False)
    metadata: dict[str, Any] = {"Software": None}
    figure.savefig(file, metadata=metadata)


def _quoted(text: str) -> str:
    """User text on one line, without characters that fonts do not have."""
    return "".join(character if character.isprintable() else " " for character in text)
