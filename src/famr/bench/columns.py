"""The figures of a cell that a bench compares, each a column of its tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

Cell = Mapping[str, Any]
FORGETS_WITHIN = 0.02
"""A method counts as one that forgets if its For-Acc is at most so much above the retrained model's."""
KEEPS_WITHIN = 0.02
"""And as one that keeps accuracy if its Ret-Acc is at most so much below the original's."""
GIB = 1 << 30


class Column(NamedTuple):
    """A figure of a cell.

    Attributes:
        name: Its name in a cell.
        title: Heading, with the unit.
        near_retrained: Whether the best value is the one nearest to the retrained model; else the smallest is.
        format: Key of `FORMATS`.
        cost: Whether it is a cost, ranked among methods that forget.
    """

    name: str
    title: str
    near_retrained: bool
    format: str
    cost: bool = False

    def value(self, cell: Cell, model: str) -> float | None:
        """The figure of a cell; None if there is none.

        Args:
            cell: A finished cell.
            model: `original`, `unlearned` or `retrained`.
        """
        if self.cost and model == "original":
            return None
        if self.name == "share_of_retraining" and model == "retrained":
            return 1.0 if cell["retrained"] else None
        figures = cell[model]
        if self.cost:
            figures = cell if model == "unlearned" else cell["retraining"]
        figure: float | None = (figures or {}).get(self.name)
        return figure

    def distance(self, cell: Cell) -> float | None:
        """What methods are compared by, small is good: the distance to the retrained model, or the figure itself.

        Args:
            cell: A finished cell.
        """
        value = self.value(cell, "unlearned")
        best = self.value(cell, "retrained") if self.near_retrained else 0.0
        return None if value is None or best is None else abs(value - best)


AVERAGE_GAP = Column("average_gap", "Avg. Gap %", False, "percent two")
JS_TO_RETRAINED = Column("js_to_retrained", "JS to retrained", False, "three")
SECONDS = Column("seconds", "seconds", False, "two", cost=True)
COLUMNS = (
    Column("retain_accuracy", "Ret-Acc %", True, "percent"),
    Column("forget_accuracy", "For-Acc %", True, "percent"),
    Column("forget_cross_entropy", "CE", True, "two"),
    Column("forget_entropy", "Ent", True, "two"),
    Column("forget_kl", "KL", True, "two"),
    AVERAGE_GAP,
    JS_TO_RETRAINED,
    Column("mia_efficacy", "MIA-efficacy %", True, "percent"),
    SECONDS,
    Column("share_of_retraining", "% of retraining time", False, "percent", cost=True),
    Column("fde", "FDE", False, "two", cost=True),
    Column("peak_memory", "peak memory, GiB", False, "gib", cost=True),
)
FORMATS: dict[str, Callable[[float], str]] = {
    "percent": lambda value: f"{100 * value:.1f}",
    "percent two": lambda value: f"{100 * value:.2f}",
    "two": lambda value: f"{value:.2f}",
    "three": lambda value: f"{value:.3f}",
    "gib": lambda value: f"{value / GIB:.2f}",
}


def finished_cells(cells: Sequence[Cell]) -> list[Cell]:
    """Cells with figures.

    Args:
        cells: Finished, failed and missing ones.
    """
    return [cell for cell in cells if "unlearned" in cell]


def cell_kind(cell: Cell, content: Mapping[str, Any]) -> str:
    """The kind of request of a cell, also of one that did not run.

    Args:
        cell: The cell.
        content: As in results.json.
    """
    return str(content["tasks"][cell["task"]]["kind"])


def by_method(cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    """Cells of each method, in the order of the plan.

    Args:
        cells: Of several methods.
    """
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell["method"], []).append(cell)
    return groups


def by_case(cells: Sequence[Cell], column: Column, model: str) -> dict[tuple[str, int], float]:
    """A figure by request and seed, where there is one.

    Args:
        cells: Finished ones, at most one for each request and seed.
        column: Which figure.
        model: `original`, `unlearned` or `retrained`.
    """
    values = {case_key(cell): column.value(cell, model) for cell in cells}
    return {key: value for key, value in values.items() if value is not None}


def case_key(cell: Cell) -> tuple[str, int]:
    """The request and the seed, by which cells of several methods are paired.

    Args:
        cell: The cell.
    """
    return cell["task"], cell["seed"]


def forgets(cells: Sequence[Cell]) -> bool | None:
    """Whether a method forgets, on average over its cells.

    Args:
        cells: Of one method.

    Returns:
        None where no model was retrained to compare with.
    """
    known = [cell for cell in cells if cell["retrained"] is not None]
    gaps = [cell["unlearned"]["forget_accuracy"] - cell["retrained"]["forget_accuracy"] for cell in known]
    return sum(gaps) / len(gaps) <= FORGETS_WITHIN if gaps else None


def keeps_accuracy(cells: Sequence[Cell]) -> bool:
    """Whether a method keeps its accuracy on what is not forgotten, on average over its cells.

    Args:
        cells: Of one method.
    """
    lost = [cell["original"]["retain_accuracy"] - cell["unlearned"]["retain_accuracy"] for cell in cells]
    return bool(sum(lost) / len(lost) <= KEEPS_WITHIN)
