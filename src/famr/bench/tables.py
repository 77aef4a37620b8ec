"""The results of a bench as a page: a table for each kind of request, what did not run, the tuning, and every cell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from famr.bench.statistics import BEST, FEWEST_PAIRS, TIED, Mean, mean_of, rank_marks
from famr.bench.tuning_tables import GATE, limit_line, tuning_table
from famr.report.content import Block, Bullets, Report, Section, Table, Text

Cell = Mapping[str, Any]
Figures = dict[tuple[str, int], float]
FORGETS_WITHIN = 0.02
"""A method counts as one that forgets if its For-Acc is at most so much above the retrained model's."""
KEEPS_WITHIN = 0.02
"""And as one that keeps accuracy if its Ret-Acc is at most so much below the original's."""
KINDS = {"class": "Classes", "concept": "Concepts", "samples": "Samples"}
GIB = 1 << 30


class Column(NamedTuple):
    """A figure of a cell.

    Attributes:
        title: Heading, with the unit.
        value: The figure of a cell and of `original`, `unlearned` or `retrained`; None if there is none.
        near_retrained: Whether the best value is the one nearest to the retrained model; else the smallest is.
        format: Key of `FORMATS`.
        cost: Whether it is a cost, ranked among methods that forget.
    """

    title: str
    value: Callable[[Cell, str], float | None]
    near_retrained: bool
    format: str
    cost: bool = False


def _metric(name: str) -> Callable[[Cell, str], float | None]:
    return lambda cell, model: (cell[model] or {}).get(name)


def _cost(name: str) -> Callable[[Cell, str], float | None]:
    def value(cell: Cell, model: str) -> float | None:
        if model == "original":
            return None
        cost: float | None = cell[name] if model == "unlearned" else (cell["retraining"] or {}).get(name)
        return cost

    return value


def _share_of_retraining(cell: Cell, model: str) -> float | None:
    return {"unlearned": cell["share_of_retraining"], "retrained": 1.0 if cell["retrained"] else None}.get(model)


COLUMNS = (
    Column("Ret-Acc %", _metric("retain_accuracy"), True, "percent"),
    Column("For-Acc %", _metric("forget_accuracy"), True, "percent"),
    Column("CE", _metric("forget_cross_entropy"), True, "two"),
    Column("Ent", _metric("forget_entropy"), True, "two"),
    Column("KL", _metric("forget_kl"), True, "two"),
    Column("Avg. Gap %", _metric("average_gap"), False, "percent two"),
    Column("JS to retrained", _metric("js_to_retrained"), False, "three"),
    Column("MIA-efficacy %", _metric("mia_efficacy"), True, "percent"),
    Column("seconds", _cost("seconds"), False, "two", cost=True),
    Column("% of retraining time", _share_of_retraining, False, "percent", cost=True),
    Column("FDE", _cost("fde"), False, "two", cost=True),
    Column("peak memory, GiB", _cost("peak_memory"), False, "gib", cost=True),
)
FORMATS: dict[str, Callable[[float], str]] = {
    "percent": lambda value: f"{100 * value:.1f}",
    "percent two": lambda value: f"{100 * value:.2f}",
    "two": lambda value: f"{value:.2f}",
    "three": lambda value: f"{value:.3f}",
    "gib": lambda value: f"{value / GIB:.2f}",
}
NOTES = (
    "± is half of a 95 % interval (Student's t over the cells). Ret-Acc: held-out images that are not forgotten; "
    "For-Acc, CE, Ent, KL and JS: the forget set; nats. KL is to the original.",
    f"{BEST} best, {TIED} not significantly worse (paired two-sided t test over the cells that both have, 5 %, not "
    "corrected for the number of methods; fewer than 3 cells allow no test). Ret-Acc, For-Acc, CE, Ent, KL and "
    "MIA-efficacy are best where they are nearest to the retrained model, the remaining columns where they are "
    f"smallest. Costs are ranked among methods that forget: For-Acc at most {100 * FORGETS_WITHIN:g} points above "
    "retrained; † marks methods that do not. While a bench is unfinished, only requests and seeds count of which most "
    "cells have run. A method with a failed or missing cell there is not ranked.",
    "Avg. Gap: mean distance to the retrained model of For-Acc, accuracy on retained training images, Ret-Acc and "
    "MIA-efficacy. MIA-efficacy: share of the forget set that a membership attack classifies as non-members; "
    "where the attack can hardly separate members from non-members it is as random as a coin flip, and with it a "
    "quarter of Avg. Gap.",
    "Seconds cover everything that a method does, preparations included, once model and images are on the device; of "
    "FAMR see below the table. Tuning is not counted for any method, nor what a process does once: on a GPU every "
    "method has run before it is timed. "
    "FDE: passes of an image through a network, divided by the number of training images. Peak memory is counted on a "
    "GPU only, beyond what is allocated when a method begins: the images, the original.",
    "The row retrain, where there is one, is a retrained model of another seed: no method can be expected to come "
    "closer. It is not ranked.",
)


def finished_cells(cells: Sequence[Cell]) -> list[Cell]:
    """Cells with figures.

    Args:
        cells: Finished, failed and missing ones.
    """
    return [cell for cell in cells if "unlearned" in cell]


def results_page(content: Mapping[str, Any]) -> Report:
    """The page of a bench.

    Args:
        content: As in results.json.
    """
    cells: list[Cell] = content["cells"]
    failed = [cell for cell in cells if "error" in cell]
    missing = [cell for cell in cells if cell.get("missing")]
    outcome = "fail" if failed else "cannot tell" if missing else "pass"
    finished = finished_cells(cells)
    verdict = f"{len(finished)} of {len(cells)} cells have figures, {len(failed)} failed, {len(missing)} not run yet."
    sections = [_setting(content)]
    for kind, title in KINDS.items():
        if of_kind := [cell for cell in cells if cell_kind(cell, content) == kind]:
            sections.append(Section(title, _kind_blocks(of_kind)))
    sections.append(Section("What did not run", (_not_run(content, failed, missing),)))
    if content["tuning"]:
        limits, classes = content.get("limits", ()), content["settings"]["classes"]
        sections.append(Section("Tuning", (tuning_table(content["tuning"], limits, classes),)))
    sections.append(Section("Every cell", (_all_cells(finished),)))
    title = f"Methods compared on {content['settings'].get('data', 'unnamed data')}"
    return Report(title, outcome, verdict, tuple(sections))  # type: ignore[arg-type]


def cell_kind(cell: Cell, content: Mapping[str, Any]) -> str:
    """The kind of request of a cell, also of one that did not run.

    Args:
        cell: The cell.
        content: As in results.json.
    """
    return str(content["tasks"][cell["task"]]["kind"])


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


def by_method(cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    """Cells of each method, in the order of the plan.

    Args:
        cells: Of several methods.
    """
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell["method"], []).append(cell)
    return groups


def case_key(cell: Cell) -> tuple[str, int]:
    """The request and the seed, by which cells of several methods are paired.

    Args:
        cell: The cell.
    """
    return cell["task"], cell["seed"]


def rankable_cells(cells: Sequence[Cell]) -> list[Cell]:
    """Cells of the requests and seeds of which most have run: one that has just begun does not count.

    Args:
        cells: Finished, failed and missing ones.
    """
    planned = Counter(case_key(cell) for cell in cells)
    run = Counter(case_key(cell) for cell in cells if not cell.get("missing"))
    return [cell for cell in cells if 2 * run[case_key(cell)] > planned[case_key(cell)]]


def column_marks(cells: Sequence[Cell], column: Column) -> dict[str, str]:
    """Which methods are best in a column, and which are not significantly worse.

    Args:
        cells: Of one kind of request.
        column: The column.
    """
    return rank_marks(_comparable(cells, column))


def _comparable(cells: Sequence[Cell], column: Column, accurate_only: bool = False) -> dict[str, Figures]:
    """Figures by method, small is good; costs only of methods that forget, nothing of retraining or of failed cells."""
    values = {}
    for name, of_method in by_method(rankable_cells(cells)).items():
        if name == "retrain" or len(finished_cells(of_method)) < len(of_method):
            continue
        if (column.cost and not forgets(of_method)) or (accurate_only and not keeps_accuracy(of_method)):
            continue
        figures = {case_key(cell): _distance_from_best(cell, column) for cell in of_method}
        values[name] = {key: value for key, value in figures.items() if value is not None}
    return values


def _distance_from_best(cell: Cell, column: Column) -> float | None:
    value = column.value(cell, "unlearned")
    best = column.value(cell, "retrained") if column.near_retrained else 0.0
    return None if value is None or best is None else abs(value - best)


def format_mean(mean: Mean | None, style: str) -> str:
    """A mean with its interval; a dash for None.

    Args:
        mean: The mean.
        style: Key of `FORMATS`.
    """
    if mean is None:
        return "–"
    write = FORMATS[style]
    return write(mean.mean) if mean.half_width is None else f"{write(mean.mean)} ± {write(mean.half_width)}"


def methods_table(cells: Sequence[Cell], caption: str) -> Table:
    """Original, every method, retrained: means over the cells, with marks.

    Args:
        cells: Of one kind of request.
        caption: Of the table.
    """
    cases = list({case_key(cell): cell for cell in finished_cells(cells)}.values())  # methods share these models
    rows = [_row("original", cases, "original")] if cases else []
    marks = {column.title: column_marks(cells, column) for column in COLUMNS}
    for name, of_method in by_method(cells).items():
        finished = finished_cells(of_method)
        count = f"{len(finished)} of {len(of_method)}"
        if not finished:
            rows.append((f"{name}: {_why_none(of_method)}", *["–"] * len(COLUMNS), count))
            continue
        label = f"{name} †" if forgets(finished) is False else name
        means = zip(COLUMNS, _row(label, finished, "unlearned")[1:-1], strict=True)
        marked = [f"{text} {marks[column.title].get(name, '')}".strip() for column, text in means]
        rows.append((label, *marked, count))
    if retrained := [cell for cell in cases if cell["retrained"] is not None]:
        rows.append(_row("retrained", retrained, "retrained"))
    return Table(caption, ("model", *(column.title for column in COLUMNS), "cells"), tuple(rows))


def _why_none(cells: Sequence[Cell]) -> str:
    reasons = dict.fromkeys(cell["error"]["what"] for cell in cells if "error" in cell)
    return f"failed: {'; '.join(reasons)}" if reasons else "not run yet"


def _row(label: str, cells: Sequence[Cell], model: str) -> tuple[str, ...]:
    means = []
    for column in COLUMNS:
        values = [value for cell in cells if (value := column.value(cell, model)) is not None]
        means.append(format_mean(mean_of(values), column.format))
    return (label, *means, str(len(cells)))


def _kind_blocks(cells: Sequence[Cell]) -> tuple[Block, ...]:
    tasks = dict.fromkeys(cell["task"] for cell in cells)
    seeds = sorted({cell["seed"] for cell in cells})
    caption = f"{len(tasks)} request(s): {', '.join(tasks)}; seeds {', '.join(map(str, seeds))}"
    lines = [ranking_summary(cells)]
    for name, of_method in by_method(finished_cells(cells)).items():
        facts = [cell["facts"] for cell in of_method if "seconds_of_steps" in cell["facts"]]
        if facts:
            steps = mean_of([each["seconds_of_steps"] for each in facts])
            calls = mean_of([each["seconds_of_the_call"] for each in facts if "seconds_of_the_call" in each])
            whole = (
                "; in the table: the whole call, with the evaluations by which it chooses its strength"
                if calls is None
                else f"; whole call, with copies and evaluation: {format_mean(calls, 'two')}"
            )
            lines.append(f"Steps of {name} alone: {format_mean(steps, 'two')} seconds{whole}.")
    return (methods_table(cells, caption), Bullets(tuple(lines)))


def ranking_summary(cells: Sequence[Cell]) -> str:
    """Which method is best by Avg. Gap and by seconds, in sentences.

    Args:
        cells: Of one kind of request.
    """
    sentences = []
    quickest: list[str] = []
    for title, accurate_only in (("Avg. Gap %", False), ("seconds", False), ("seconds", True)):
        column = next(column for column in COLUMNS if column.title == title)
        values = _comparable(cells, column, accurate_only)
        marks = rank_marks(values)
        best = [name for name, mark in marks.items() if mark == BEST]
        if accurate_only and best in ([], quickest):
            continue  # no method keeps its accuracy, or the quickest one does
        quickest = best
        means = {name: fmean(figures.values()) for name, figures in values.items() if figures}
        among = " among methods that forget" if column.cost else ""
        among += f" and lose at most {100 * KEEPS_WITHIN:g} points of Ret-Acc" if accurate_only else ""
        what = f"{title.removesuffix(' %')}{among}"
        if not best:
            sentences.append(f"No method to rank by {what}.")
            continue
        unit = "%" if title.endswith("%") else "s"
        shown = {name: f"{name} ({FORMATS[column.format](mean)} {unit})" for name, mean in means.items()}
        tied = sorted((name for name, mark in marks.items() if mark == TIED), key=means.__getitem__)
        listed = ", ".join(shown[name] for name in tied)
        rest = f"; not significantly worse: {listed}" if tied else "; all others are significantly worse"
        if len({case_key(cell) for cell in finished_cells(rankable_cells(cells))}) < FEWEST_PAIRS:
            rest = f"; fewer than {FEWEST_PAIRS} cells a method allow no test"
        if len(values) == 1:
            rest = ", the only one"
        sentences.append(f"Smallest {what}: {shown[best[0]]}{rest}.")
    return " ".join(sentences)


def _setting(content: Mapping[str, Any]) -> Section:
    settings, machine = content["settings"], content["environment"]
    training = settings["training"]
    lines = [
        f"Data: {settings.get('data', 'not named')}, {settings['training_images']} training images, "
        f"{settings['classes']} classes; methods see {settings['shown_to_methods']}.",
        f"Model: {settings.get('model', 'not named')}; {training['epochs']} epochs, batch {training['batch_size']}, "
        f"learning rate {training['learning_rate']:g}; retrained models likewise, without the forget set.",
        _tuning_line(settings),
        *filter(None, [limit_line(content)]),
        f"Machine: {machine['hardware']}, torch {machine['torch']}, timm {machine['timm']}, famr {machine['famr']}, "
        f"{settings['precision']}.",
    ]
    weights: dict[int, set[str]] = {}
    for cell in finished_cells(content["cells"]):
        weights.setdefault(cell["seed"], set()).add(cell["original_sha256"])
    if several := [str(seed) for seed, digests in weights.items() if len(digests) > 1]:
        lines.append(
            f"The original of seed {', '.join(several)} was trained more than once, with other weights each time."
        )
    return Section("What was run", (Bullets((*lines, *NOTES)),))


def _tuning_line(settings: Mapping[str, Any]) -> str:
    """How numbers were chosen; of benches before the gate, by one request of each kind."""
    if not settings["tuned_on"]:
        return "Tuning: none, default numbers."
    requests = settings["tuned_on"].values()
    if "most_epochs" in settings:
        most = settings["most_epochs"]
        return (
            f"Tuning: at most {settings['trials']} runs a method, seed {settings['tuning_seed']}, on "
            f"{' and on '.join(requests)}, not scored; judged on at most {settings['tuning_scored']} retained and as "
            "many held-out images."
        ) + (f" Epochs over the retained images: at most {most}, for every method." if most else "")
    listed = "; ".join(", ".join(labels) for labels in requests)
    return (
        f"Tuning: at most {settings['trials']} variants a method, its own and its paper's numbers among them, seed "
        f"{settings['tuning_seed']}, on requests that are not scored: {listed}. {GATE}"
    )


def _not_run(content: Mapping[str, Any], failed: Sequence[Cell], missing: Sequence[Cell]) -> Block:
    """Cells that failed, with the reason; missing ones; requests that a method cannot serve."""

    def case(cell: Cell) -> str:
        return f"{cell['task']}, seed {cell['seed']}"

    lines = [f"Failed: {c['method']}, {case(c)}: {c['error']['kind']}: {c['error']['what']}" for c in failed]
    not_yet: dict[str, list[str]] = {}
    for cell in missing:
        not_yet.setdefault(case(cell), []).append(cell["method"])
    lines += [f"Not run yet: {label}: {', '.join(methods)}" for label, methods in not_yet.items()]
    lines += [f"Not served: {pair}: {reason}" for pair, reason in content.get("not_served", {}).items()]
    return Bullets(tuple(lines)) if lines else Text("Everything ran.")


def _all_cells(cells: Sequence[Cell]) -> Table:
    rows = []
    for cell in cells:
        values = [column.value(cell, "unlearned") for column in COLUMNS]
        figures = ["–" if v is None else FORMATS[c.format](v) for v, c in zip(values, COLUMNS, strict=True)]
        rows.append((cell["method"], cell["task"], str(cell["seed"]), *figures))
    columns = ("method", "request", "seed", *(column.title for column in COLUMNS))
    return Table("One row a cell", columns, tuple(rows), words=3)
