"""Small drawings as SVG text: coordinates and marks. Colours and letters come from the page, so they suit its theme."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from famr.report.escaping import in_html

WIDTH = 390.0
LEFT, RIGHT = 48.0, 12.0


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers from `low` to `high`, about as many as asked.

    >>> ticks(0, 100), ticks(0, 4.55), ticks(0.93, 1.0)
    ([0.0, 20.0, 40.0, 60.0, 80.0, 100.0], [0.0, 1.0, 2.0, 3.0, 4.0], [0.94, 0.96, 0.98, 1.0])
    """
    span = high - low
    if span <= 0:
        return [low]
    rough = span / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= 0.999 * rough)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(k * step, 10) for k in range(first, last + 1)]


def number(value: float) -> str:
    """A coordinate: two decimals at most.

    >>> number(1.0), number(2.345), number(-0.001)
    ('1', '2.35', '0')
    """
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


@dataclass(frozen=True)
class Panel:
    """A rectangle with its two scales."""

    top: float
    height: float
    xs: tuple[float, float]
    ys: tuple[float, float]
    left: float = LEFT
    width: float = WIDTH - LEFT - RIGHT

    def x(self, value: float) -> float:
        """Where a value lies across."""
        low, high = self.xs
        return self.left + self.width * (value - low) / ((high - low) or 1.0)

    def y(self, value: float) -> float:
        """Where a value lies up."""
        low, high = self.ys
        return self.top + self.height * (1 - (value - low) / ((high - low) or 1.0))

    @property
    def bottom(self) -> float:
        """The lower edge."""
        return self.top + self.height

    def frame(self, y_ticks: Sequence[float], x_ticks: Sequence[float], *, x_numbers: bool = True) -> list[str]:
        """Grid, axis and the numbers beside it."""
        parts = []
        for value in y_ticks:
            parts.append(line(self.left, self.y(value), self.left + self.width, self.y(value), "grid"))
            parts.append(text(self.left - 7, self.y(value) + 4, f"{value:g}", "tick", anchor="end"))
        for value in x_ticks:
            parts.append(line(self.x(value), self.bottom, self.x(value), self.bottom + 4, "axis"))
            if x_numbers:
                parts.append(text(self.x(value), self.bottom + 18, f"{value:g}", "tick", anchor="middle"))
        return [*parts, line(self.left, self.bottom, self.left + self.width, self.bottom, "axis")]


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """A straight line."""
    ends = zip(("x1", "y1", "x2", "y2"), (x1, y1, x2, y2), strict=True)
    return f'<line class="{kind}" ' + " ".join(f'{name}="{number(value)}"' for name, value in ends) + "/>"


def path(points: Iterable[tuple[float, float]], kind: str) -> str:
    """A line through points."""
    joined = " ".join(f"{number(x)},{number(y)}" for x, y in points)
    return f'<polyline class="line {kind}" points="{joined}"/>'


def bar(x: float, y: float, width: float, height: float, kind: str) -> str:
    """A filled rectangle."""
    sides = zip(("x", "y", "width", "height"), (x, y, width, max(height, 0.0)), strict=True)
    return f'<rect class="fill {kind}" ' + " ".join(f'{name}="{number(value)}"' for name, value in sides) + "/>"


def mark(x: float, y: float, kind: str, shape: str = "circle") -> str:
    """A point: a circle, a hollow circle, a square or a diamond, so that no colour is needed to tell them apart."""
    if shape in ("circle", "hollow"):
        style, radius = ("hollow", 5.5) if shape == "hollow" else ("fill", 3.5)
        return f'<circle class="{style} {kind}" cx="{number(x)}" cy="{number(y)}" r="{radius}"/>'
    ring = [(-3, -3), (3, -3), (3, 3), (-3, 3)] if shape == "square" else [(0, -5.5), (5.5, 0), (0, 5.5), (-5.5, 0)]
    corners = " ".join(f"{number(x + dx)},{number(y + dy)}" for dx, dy in ring)
    return f'<polygon class="fill {kind}" points="{corners}"/>'


def text(x: float, y: float, words: str, kind: str, anchor: str = "start") -> str:
    """Words at a place; user text is escaped here."""
    return f'<text class="{kind}" x="{number(x)}" y="{number(y)}" text-anchor="{anchor}">{in_html(words)}</text>'


def drawing(parts: Iterable[str], height: float, label: str) -> str:
    """The whole figure; `label` is what a screen reader says."""
    box = f"0 0 {number(WIDTH)} {number(height)}"
    return f'<svg viewBox="{box}" role="img" aria-label="{in_html(label)}">\n' + "\n".join(parts) + "\n</svg>"


def short(words: str, most: int) -> str:
    """A long name, cut.

    >>> short("a very long class name", 10)
    'a very lo…'
    """
    return words if len(words) <= most else words[: most - 1] + "…"
