"""Which methods a bench ranks, and that its page and its results.json report the same comparison."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from famr.bench.columns import AVERAGE_GAP, COLUMNS, FORMATS, JS_TO_RETRAINED, SECONDS
from famr.bench.comparison import compare_methods, rank_column
from famr.bench.statistics import BEST, TIED
from famr.bench.tables import LISTED, comparison_summary, differences_table, methods_table, ranking_summary

METHODS = {"A": 0.0, "B": 0.0, "C": 3.0}
"""Method → by how much its figures are larger than A's, in the mean."""


def noise(method: str, request: int, seed: int) -> float:
    """Between 0 and 2: what a method owes to the request, and to the seed."""
    return Random(f"{method} {request}").random() + Random(f"{method} {request} {seed}").random()


def cell(method: str, request: int, seed: int) -> dict[str, Any]:
    more = METHODS[method] + 0.1 * noise(method, request, seed)
    accuracies = {"retain_accuracy": 0.9, "forget_accuracy": 0.0, "mia_efficacy": 0.9}
    nats = {"forget_cross_entropy": 9.0, "forget_entropy": 1.0, "forget_kl": 8.0}
    return {
        "method": method,
        "task": f"class {request}",
        "kind": "class",
        "seed": seed,
        "original": {"retain_accuracy": 0.9, "forget_accuracy": 1.0},
        "retrained": accuracies | nats,
        "unlearned": {
            **accuracies,
            **{name: value + more for name, value in nats.items()},
            "average_gap": 0.01 * (1 + more),
            "js_to_retrained": 0.1 * (1 + more),
        },
        "seconds": 1.0 + more,
        "share_of_retraining": 0.1 * (1 + more),
        "fde": 1.0 + METHODS[method],
        "peak_memory": None,
        "retraining": {"seconds": 10.0, "fde": 8.0, "peak_memory": None},
        "facts": {},
    }


def cells_of(
    requests: int, seeds: int, keep: Callable[[str, int, int], bool] = lambda *_: True
) -> list[dict[str, Any]]:
    keys = [(method, request, seed) for request in range(requests) for seed in range(seeds) for method in METHODS]
    return [cell(*key) for key in keys if keep(*key)]


def missing(method: str, request: int, seed: int) -> dict[str, Any]:
    return {"method": method, "task": f"class {request}", "seed": seed, "missing": True}


def content_of(cells: list[dict[str, Any]]) -> dict[str, Any]:
    return {"cells": cells, "tasks": {each["task"]: {"kind": "class"} for each in cells}}


@pytest.mark.parametrize(("requests", "seeds", "unit", "blocks"), [(5, 3, "requests", 5), (2, 4, "seeds", 4)])
def test_the_page_shows_the_comparison_of_results_json(requests: int, seeds: int, unit: str, blocks: int) -> None:
    cells = cells_of(requests, seeds)
    compared = compare_methods(content_of(cells))
    assert json.loads(json.dumps(compared, allow_nan=False)) == compared
    columns = compared["class"]
    assert columns.keys() == {column.name for column in COLUMNS} - {"peak_memory"}  # nobody has that one
    for of_column in columns.values():
        assert (of_column["blocks_are"], of_column["blocks"], of_column["comparisons"]) == (unit, blocks, 3)
    table, differences = methods_table(cells, ""), differences_table(cells)
    assert differences is not None
    rows = {row[0]: row[1:] for row in differences.rows}
    for place, column in enumerate((AVERAGE_GAP, JS_TO_RETRAINED, SECONDS)):
        of_column, write = columns[column.name], FORMATS[column.format]
        for method, figures in of_column["methods"].items():
            shown = next(row for row in table.rows if row[0] == method)[table.columns.index(column.title)]
            half = (figures["high"] - figures["low"]) / 2
            assert shown == f"{write(figures['mean'])} ± {write(half)} {figures['mark'] or ''}".strip()
            worse, g, p_value = rows[method][3 * place : 3 * place + 3]
            if method == of_column["best"]:
                assert (worse, figures["mark"]) == (f"best {BEST}", BEST)
                continue
            against = figures["against_best"]
            half = (against["high"] - against["low"]) / 2
            assert worse == f"{write(against['difference'])} ± {write(half)}"
            assert g in (f"{against['hedges_g']:.1f}", "> 100")
            assert p_value in (f"{against['corrected_p_value']:.3f}", "< 0.001")
            assert figures["mark"] == (TIED if against["corrected_p_value"] >= 0.05 else None)
            assert against["p_value"] <= against["corrected_p_value"]
    marks = {method: figures["mark"] for method, figures in columns["seconds"]["methods"].items()}
    assert (marks.pop("C"), {*marks.values()}) == (None, {BEST, TIED})


def test_the_page_names_the_blocks_the_correction_and_the_number_of_comparisons() -> None:
    over = comparison_summary(cells_of(5, 3))
    assert "over 5 requests, each averaged over its seeds" in over
    assert (
        "Holm's correction is over 3 pairs of 3 methods in a column, 3 pairs of 3 methods in a column of costs" in over
    )
    assert "over 3 seeds and speak of this request alone" in comparison_summary(cells_of(1, 3))
    assert "over 3 seeds and speak of these requests alone" in comparison_summary(cells_of(2, 3))
    remembers = cells_of(5, 3)
    for each in remembers:
        each["unlearned"]["forget_accuracy"] = float(each["method"] == "B")
    assert "3 pairs of 3 methods in a column, 1 pair of 2 methods in a column of costs" in comparison_summary(remembers)


@pytest.mark.parametrize(("requests", "seeds"), [(1, 1), (1, 2), (2, 2)])
def test_with_fewer_than_three_blocks_nothing_is_tested_and_the_page_says_so(requests: int, seeds: int) -> None:
    cells = cells_of(requests, seeds)
    summary = comparison_summary(cells)
    assert summary.startswith("Not tested: ")
    assert "it takes 3 requests, or 3 seeds that all requests have" in summary
    assert ("Intervals are over 2 seeds" in summary) == (seeds == 2)
    assert ranking_summary(cells).count("; not tested.") == 2
    assert TIED not in str(methods_table(cells, "").rows)
    differences = differences_table(cells)
    assert differences is not None
    assert [row[-1] for row in differences.rows] == ["–", "not tested", "not tested"]
    (against,) = {str(each["against_best"]["p_value"]) for each in against_best(cells)}
    assert against == "None"


def against_best(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Methods other than the best by seconds."""
    methods = compare_methods(content_of(cells))["class"]["seconds"]["methods"].values()
    return [each for each in methods if each["against_best"] is not None]


def test_methods_are_ranked_on_the_same_cells_those_that_most_methods_have_run() -> None:
    whole = cells_of(4, 1)
    added = [*whole, cell("C", 9, 0)]  # a request that one method alone has run does not count
    assert rank_column(added, SECONDS) == rank_column(whole, SECONDS)
    lacking = cells_of(4, 1, lambda method, request, _seed: (method, request) != ("B", 2))
    for cells in (lacking, [*lacking, missing("B", 2, 0)]):  # never planned, or planned and not run
        assert rank_column(cells, SECONDS).figures.keys() == {"A", "C"}
        assert "1 pair of 2 methods in a column" in comparison_summary(cells)


def test_a_request_with_more_seeds_counts_no_more_than_another() -> None:
    cells = cells_of(3, 4, lambda _method, request, seed: request == 0 or seed == 0)
    ranking = rank_column(cells, SECONDS)
    by_request = [
        [each["seconds"] for each in cells if each["method"] == "A" and each["task"] == f"class {request}"]
        for request in range(3)
    ]
    assert list(map(len, by_request)) == [4, 1, 1]
    assert ranking.means["A"] == pytest.approx(sum(sum(values) / len(values) for values in by_request) / 3)
    assert len(ranking.blocks.means) == 3


def test_long_lists_of_methods_are_cut_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "CDEFGH":
        monkeypatch.setitem(METHODS, name, 0.0)
    cells = cells_of(3, 1)
    tied = list(rank_column(cells, AVERAGE_GAP).marks().values()).count(TIED)
    assert tied > LISTED
    assert f" and {tied - LISTED} more. Smallest seconds" in ranking_summary(cells)
