"""What was tried of each method's numbers, what was cut to the limit in seconds, and what the gate chose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from famr.bench.gate import MARGIN, choose_trial, gate_distance, mean_figures
from famr.report.content import Table
from famr.unlearn.criteria import FORGOTTEN
from famr.unlearn.search import DESTROYED

Record = Mapping[str, Any]
GATE = (
    "One gate chooses the numbers of every method, without retrained models and on images that are never scored: of "
    "the trials that forget and keep, the one with the highest held-out accuracy; where there is none, the nearest to "
    f"the gate. A class is forgotten at an accuracy of chance or {100 * FORGOTTEN:g} % on the forget set, samples "
    f"within {100 * MARGIN:g} points of the original's accuracy on images that it never saw; a model that loses "
    f"more than {100 * (1 - DESTROYED):g} % of its held-out accuracy does not keep. A trial's figures are means over "
    "the requests."
)


def tuning_table(trials: Sequence[Record], limits: Sequence[Record], classes: int) -> Table:
    """Every trial: the numbers in which a method's trials differ, its steps, its figures, and which one was chosen.

    Args:
        trials: Records of tuning runs.
        limits: What of each trial fits into the limit.
        classes: Number of classes.
    """
    if any("unlearned" in run for run in trials):
        return _by_average_gap(trials)
    fitted = {(record["method"], record["kind"], record["trial"]): record for record in limits}
    rows = []
    for (method, kind), group in _grouped(trials, "kind").items():
        by_trial = _grouped(group, "trial")
        runs = [by_trial[key] for key in sorted(by_trial)]
        figures = [mean_figures(of_trial) for of_trial in runs]
        best = choose_trial(kind, figures, classes)
        numbers = _varied([of_trial[0] for of_trial in runs])
        for index, (of_trial, known, tried) in enumerate(zip(runs, figures, numbers, strict=True)):
            steps = steps_text(fitted.get((method, kind, of_trial[0]["trial"]), {}))
            if known is None:
                reason = next(run["error"]["what"] for run in of_trial if "error" in run)
                rows.append((method, kind, tried, steps, f"failed: {reason}", "–", "–", "–"))
                continue
            passes = "passes" if gate_distance(kind, known, classes) == 0 else ""
            mark = ", ".join(filter(None, (passes, "chosen" if index == best else "")))
            seconds = fmean(run["seconds"] for run in of_trial)
            rows.append(
                (method, kind, tried, steps, mark, *(f"{100 * value:.1f}" for value in known[:2]), f"{seconds:.2f}")
            )
    columns = ("method", "kind", "numbers that were varied", "steps", "gate", "For-Acc %", "held-out %", "seconds")
    return Table("Means over the tuning requests", columns, tuple(rows), words=5)


def steps_text(record: Record) -> str:
    """How many steps the limit leaves, in words.

    Args:
        record: Of a limit; empty: none was set.

    >>> steps_text({"steps": 24, "planned": 1950}), steps_text({"steps": 40, "planned": 40}), steps_text({})
    ('24 of 1950', 'all 40', 'not limited')
    """
    if "steps" not in record:
        return str(record.get("cut", "not limited"))
    steps, planned = record["steps"], record["planned"]
    return f"all {planned}" if steps >= planned else f"{steps} of {planned}"


def limit_line(content: Mapping[str, Any]) -> str | None:
    """The limit in seconds, and where it comes from; None where there is none.

    Args:
        content: As in results.json.
    """
    by_kind = {record["kind"]: record["limit"] for record in content.get("limits", ())}
    if not by_kind:
        return None
    given = content["settings"].get("seconds") is not None
    source = "as given" if given else "the longest that FAMR takes on the tuning requests of the kind"
    listed = ", ".join(f"{kind} {seconds:.2f}" for kind, seconds in by_kind.items())
    return (
        f"Limit in seconds: {listed}; {source}. A method that would take longer takes fewer steps: as many whole "
        "epochs as fit, or a part of one, and its schedule ends with them. FAMR, SISA and retraining are not cut, nor "
        "is a method without steps."
    )


def _by_average_gap(trials: Sequence[Record]) -> Table:
    """Trials of benches before the gate: one request of each kind, the smallest Avg. Gap was chosen."""
    rows = []
    for (method, task), group in _grouped(trials, "task").items():
        runs = sorted(group, key=lambda run: run["trial"])
        gaps = {index: run["unlearned"]["average_gap"] for index, run in enumerate(runs) if "error" not in run}
        best = min(gaps, key=lambda index: gaps[index]) if gaps else None
        for index, (run, tried) in enumerate(zip(runs, _varied(runs), strict=True)):
            outcome = f"failed: {run['error']['what']}" if "error" in run else "chosen" if index == best else ""
            rows.append((method, task, tried, outcome, f"{100 * gaps[index]:.2f}" if index in gaps else "–"))
    columns = ("method", "request", "numbers that were varied", "", "Avg. Gap %")
    return Table("Runs on requests that are not scored; the smallest Avg. Gap is chosen", columns, tuple(rows), 4)


def _grouped(records: Sequence[Record], name: str) -> dict[Any, list[Record]]:
    """Records by method and one of their values; by trial alone for `trial`."""
    groups: dict[Any, list[Record]] = {}
    for record in records:
        groups.setdefault(record[name] if name == "trial" else (record["method"], record[name]), []).append(record)
    return groups


def _varied(runs: Sequence[Record]) -> list[str]:
    """Of each run, the numbers in which the runs differ."""
    numbers = [_flat(run["numbers"]) for run in runs]
    names = [name for name in numbers[0] if len({str(values.get(name)) for values in numbers}) > 1]
    return [", ".join(f"{name.replace('_', ' ')} {values.get(name)}" for name in names) for values in numbers]


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers of a method, nested ones beside the outer ones."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value) if isinstance(value, Mapping) else {name: value}
    return flat
