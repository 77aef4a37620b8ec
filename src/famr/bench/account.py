"""What a page of a bench says beside its figures: what did not run, and what was tried to tune each method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from famr.bench.tuning import best_trial
from famr.report.content import Block, Bullets, Table, Text

Cell = Mapping[str, Any]


def not_run(content: Mapping[str, Any], failed: Sequence[Cell], missing: Sequence[Cell]) -> Block:
    """Cells that failed, with the reason; those that are still to come; what a method cannot serve."""
    lines = [f"Failed: {cell['method']}, {_case(cell)}: {_reason(cell)}" for cell in failed]
    left: dict[str, list[str]] = {}
    for cell in missing:
        left.setdefault(_case(cell), []).append(cell["method"])
    lines += [f"Not run yet: {case}: {', '.join(methods)}" for case, methods in left.items()]
    lines += [f"Not served: {pair}: {reason}" for pair, reason in content.get("not_served", {}).items()]
    return Bullets(tuple(lines)) if lines else Text("Everything ran.")


def _case(cell: Cell) -> str:
    return f"{cell['task']}, seed {cell['seed']}"


def _reason(cell: Cell) -> str:
    return f"{cell['error']['kind']}: {cell['error']['what']}"


def tuning_table(trials: Sequence[Cell]) -> Table:
    """Every trial, by the numbers in which those of a method differ, and which was taken."""
    rows = []
    groups: dict[tuple[str, str], list[Cell]] = {}
    for run in trials:
        groups.setdefault((run["method"], run["task"]), []).append(run)
    for (method, task), found in groups.items():
        runs = sorted(found, key=lambda run: run["trial"])
        taken = best_trial(runs)
        numbers = [_flat(run["numbers"]) for run in runs]
        varied = [name for name in numbers[0] if len({str(each.get(name)) for each in numbers}) > 1]
        for place, (run, told) in enumerate(zip(runs, numbers, strict=True)):
            tried = ", ".join(f"{name.replace('_', ' ')} {told.get(name)}" for name in varied)
            rows.append((method, task, tried, *_outcome(run, place == taken)))
    columns = ("method", "request", "numbers that were varied", "", "Avg. Gap %")
    return Table("Runs on requests that are not scored; the smallest Avg. Gap is taken", columns, tuple(rows), 4)


def _outcome(run: Cell, taken: bool) -> tuple[str, str]:
    if "error" in run:
        return f"failed: {run['error']['what']}", "–"
    return "taken" if taken else "", f"{100 * run['unlearned']['average_gap']:.2f}"


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers of a method, those inside others beside them."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value) if isinstance(value, Mapping) else {name: value}
    return flat
