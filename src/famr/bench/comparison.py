"""Which methods are compared in a column, and the outcome as plain values for results.json."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from famr.bench.columns import (
    COLUMNS,
    Cell,
    Column,
    by_method,
    case_key,
    cell_kind,
    finished_cells,
    forgets,
    keeps_accuracy,
)
from famr.bench.statistics import Difference, Figures, Ranking, blocked_mean, paired_difference, rank


def rankable_cells(cells: Sequence[Cell]) -> list[Cell]:
    """Cells of the requests and seeds that most methods have run: one that has just begun does not count.

    Args:
        cells: Finished, failed and missing ones.
    """
    run = Counter(case_key(cell) for cell in cells if not cell.get("missing"))
    methods = {cell["method"] for cell in cells}
    return [cell for cell in cells if 2 * run[case_key(cell)] > len(methods)]


def rank_column(cells: Sequence[Cell], column: Column) -> Ranking:
    """Compare the methods that can be ranked in a column.

    Left out are retraining itself, methods that lack a figure of a rankable request and seed, so that all are compared
    on the same ones, and, where the column is a cost, methods that do not forget.

    Args:
        cells: Of one kind of request.
        column: The column.
    """
    cells = rankable_cells(cells)
    cases = {case_key(cell) for cell in cells}
    values: dict[str, Figures] = {}
    for name, of_method in by_method(cells).items():
        finished = finished_cells(of_method)
        if (
            name == "retrain"
            or {case_key(cell) for cell in finished} != cases
            or (column.cost and not forgets(finished))
        ):
            continue
        figures = {case_key(cell): column.distance(cell) for cell in finished}
        values[name] = {key: figure for key, figure in figures.items() if figure is not None}
    return rank(values)


def accurate_methods(cells: Sequence[Cell]) -> set[str]:
    """Methods that keep their accuracy on what is not forgotten.

    Args:
        cells: Of one kind of request.
    """
    methods = by_method(finished_cells(rankable_cells(cells)))
    return {name for name, of_method in methods.items() if keeps_accuracy(of_method)}


def compare_methods(content: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Every ranked method against the best one, by kind of request and name of the column.

    Args:
        content: As in results.json, which this becomes a part of.
    """
    kinds = dict.fromkeys(cell_kind(cell, content) for cell in content["cells"])
    found: dict[str, dict[str, Any]] = {}
    for kind in kinds:
        cells = [cell for cell in content["cells"] if cell_kind(cell, content) == kind]
        rankings = {column.name: rank_column(cells, column) for column in COLUMNS}
        found[kind] = {name: _outcome(ranking) for name, ranking in rankings.items() if ranking.figures}
    return found


def _outcome(ranking: Ranking) -> dict[str, Any]:
    best, marks, blocks = ranking.best(), ranking.marks(), ranking.blocks
    assert best is not None
    methods = {}
    for name, figures in ranking.figures.items():
        mean = blocked_mean(figures)
        assert mean is not None
        against = None if name == best else paired_difference(figures, ranking.figures[best])
        corrected = ranking.corrected.get(frozenset((best, name)))
        methods[name] = {
            "mean": mean.mean,
            "low": mean.low,
            "high": mean.high,
            "mark": marks.get(name),
            "against_best": None if against is None else _plain(against, corrected),
        }
    tests = {"blocks": len(blocks.means), "blocks_are": blocks.unit, "comparisons": len(ranking.corrected)}
    return {"best": best, **tests, "correction": "Holm, all pairs", "methods": methods}


def _plain(against: Difference, corrected: float | None) -> dict[str, Any]:
    return {
        "difference": against.mean.mean,
        "low": against.mean.low,
        "high": against.mean.high,
        "hedges_g": against.standardised,
        "p_value": against.p_value,
        "corrected_p_value": corrected,
    }
