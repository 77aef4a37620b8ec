"""The results of a bench as a page: a table for each kind of request, and every cell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from famr.bench.account import not_run, tuning_table
from famr.bench.statistics import BEST, TESTED_FROM, TIED, Marks, Mean, marks, mean_of
from famr.report.content import Block, Bullets, Report, Section, Table

Cell = Mapping[str, Any]
Figures = dict[tuple[str, int], float]
FORGETS_WITHIN = 0.02
"""A method counts as one that forgets if its For-Acc is at most so much above the retrained model's."""
KEEPS_WITHIN = 0.02
"""And as one that keeps what is not forgotten if its Ret-Acc is at most so much below the original's."""
KINDS = {"class": "Classes", "concept": "Concepts", "samples": "Samples"}
GIB = 1 << 30


class Column(NamedTuple):
    """A figure of a cell: how it is found, what of it is small where it is good, and how it is written."""

    title: str
    value: Callable[[Cell, str], float | None]
    near_retrained: bool
    """Whether the best is the one nearest to the retrained model; else the smallest."""
    write: str
    cost: bool = False


def _measure(name: str) -> Callable[[Cell, str], float | None]:
    return lambda cell, model: (cell[model] or {}).get(name)


def _cost(name: str) -> Callable[[Cell, str], float | None]:
    def find(cell: Cell, model: str) -> float | None:
        if model == "original":
            return None
        found: float | None = cell[name] if model == "unlearned" else (cell["retraining"] or {}).get(name)
        return found

    return find


def _share(cell: Cell, model: str) -> float | None:
    return {"unlearned": cell["share_of_retraining"], "retrained": 1.0 if cell["retrained"] else None}.get(model)


COLUMNS = (
    Column("Ret-Acc %", _measure("retain_accuracy"), True, "percent"),
    Column("For-Acc %", _measure("forget_accuracy"), True, "percent"),
    Column("CE", _measure("forget_cross_entropy"), True, "two"),
    Column("Ent", _measure("forget_entropy"), True, "two"),
    Column("KL", _measure("forget_kl"), True, "two"),
    Column("Avg. Gap %", _measure("average_gap"), False, "percent two"),
    Column("JS to retrained", _measure("js_to_retrained"), False, "three"),
    Column("MIA-efficacy %", _measure("mia_efficacy"), True, "percent"),
    Column("seconds", _cost("seconds"), False, "two", cost=True),
    Column("% of retraining time", _share, False, "percent", cost=True),
    Column("FDE", _cost("fde"), False, "two", cost=True),
    Column("peak memory, GiB", _cost("peak_memory"), False, "gib", cost=True),
)
WRITERS: dict[str, Callable[[float], str]] = {
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
    "MIA-efficacy are best where they are nearest to the retrained model, the others where they are smallest. Costs "
    f"are ranked among methods that forget: For-Acc at most {100 * FORGETS_WITHIN:g} points above retrained; † marks "
    "the others. While a bench is unfinished, only requests and seeds count of which most cells have run. A method "
    "with a cell that failed or is missing there is not ranked.",
    "Avg. Gap: mean distance to the retrained model of For-Acc, accuracy on retained training images, Ret-Acc and "
    "MIA-efficacy. MIA-efficacy: share of the forget set that an attack calls non-members; "
    "where members and others can hardly be told apart it is close to a coin, and Avg. Gap with it.",
    "Seconds are those of all that a method does, preparations included, once model and images are on the device; of "
    "FAMR its steps alone, and its whole call, are given below the table. Tuning is not counted for any method, nor "
    "what a process does once: on a GPU every method has run before it is timed, and takes the same captured steps. "
    "FDE: passes of an image through a network, divided by the number of training images. Peak memory is counted on a "
    "GPU only, beyond what lies there when a method begins: the images, the original.",
    "The row retrain, where there is one, is a retrained model of another seed: the distance that no method can be "
    "asked to beat. It takes no part in the ranking.",
)


def done(cells: Sequence[Cell]) -> list[Cell]:
    """Those with figures."""
    return [cell for cell in cells if "unlearned" in cell]


def results_page(content: Mapping[str, Any]) -> Report:
    """The whole page."""
    cells: list[Cell] = content["cells"]
    failed = [cell for cell in cells if "error" in cell]
    missing = [cell for cell in cells if cell.get("missing")]
    outcome = "fail" if failed else "cannot tell" if missing else "pass"
    told = f"{len(done(cells))} of {len(cells)} cells have figures, {len(failed)} failed, {len(missing)} not run yet."
    sections = [_setting(content)]
    for kind, title in KINDS.items():
        if some := [cell for cell in cells if kind_of(cell, content) == kind]:
            sections.append(Section(title, _kind_blocks(some)))
    sections.append(Section("What did not run", (not_run(content, failed, missing),)))
    if content["tuning"]:
        sections.append(Section("Tuning", (tuning_table(content["tuning"]),)))
    sections.append(Section("Every cell", (_every(done(cells)),)))
    title = f"Methods beside each other on {content['settings'].get('data', 'data that nobody named')}"
    return Report(title, outcome, told, tuple(sections))  # type: ignore[arg-type]


def kind_of(cell: Cell, content: Mapping[str, Any]) -> str:
    """The kind of request of a cell, also of one that did not run."""
    return str(content["tasks"][cell["task"]]["kind"])


def forgets(cells: Sequence[Cell]) -> bool | None:
    """Whether a method forgets, on average over its cells; None where no retrained model says how much is right."""
    known = [cell for cell in cells if cell["retrained"] is not None]
    gaps = [cell["unlearned"]["forget_accuracy"] - cell["retrained"]["forget_accuracy"] for cell in known]
    return sum(gaps) / len(gaps) <= FORGETS_WITHIN if gaps else None


def keeps(cells: Sequence[Cell]) -> bool:
    """Whether a method keeps what is not to be forgotten, on average over its cells."""
    lost = [cell["original"]["retain_accuracy"] - cell["unlearned"]["retain_accuracy"] for cell in cells]
    return bool(sum(lost) / len(lost) <= KEEPS_WITHIN)


def by_method(cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    """Cells of each method, in the order of the plan."""
    found: dict[str, list[Cell]] = {}
    for cell in cells:
        found.setdefault(cell["method"], []).append(cell)
    return found


def to_rank(cells: Sequence[Cell]) -> list[Cell]:
    """Cells of the requests and seeds of which most have run: one that was just begun must not unrank everybody."""
    planned = Counter(case_of(cell) for cell in cells)
    ran = Counter(case_of(cell) for cell in cells if not cell.get("missing"))
    return [cell for cell in cells if 2 * ran[case_of(cell)] > planned[case_of(cell)]]


def case_of(cell: Cell) -> tuple[str, int]:
    """The request and the seed, by which cells of several methods are paired."""
    return cell["task"], cell["seed"]


def ranked(cells: Sequence[Cell], column: Column) -> Marks:
    """Marks of a column."""
    return marks(_comparable(cells, column))


def _comparable(cells: Sequence[Cell], column: Column, keeping: bool = False) -> dict[str, Figures]:
    """Figures of methods; costs only of those that forget, never of retraining itself or where a cell failed.

    `keeping`: of those alone that keep the rest.
    """
    values = {}
    for name, some in by_method(to_rank(cells)).items():
        if name == "retrain" or len(done(some)) < len(some):
            continue
        if (column.cost and not forgets(some)) or (keeping and not keeps(some)):
            continue
        figures = {case_of(cell): _goodness(cell, column) for cell in some}
        values[name] = {key: value for key, value in figures.items() if value is not None}
    return values


def _goodness(cell: Cell, column: Column) -> float | None:
    """Small is good."""
    value = column.value(cell, "unlearned")
    truth = column.value(cell, "retrained") if column.near_retrained else 0.0
    return None if value is None or truth is None else abs(value - truth)


def written(mean: Mean | None, how: str) -> str:
    """A mean with its interval, or a dash."""
    if mean is None:
        return "–"
    write = WRITERS[how]
    return write(mean.mean) if mean.half is None else f"{write(mean.mean)} ± {write(mean.half)}"


def methods_table(cells: Sequence[Cell], caption: str) -> Table:
    """Original, every method, retrained: means over the cells, with marks."""
    found = done(cells)
    cases = list({case_of(cell): cell for cell in found}.values())  # original and truth are shared
    rows = [_row("original", cases, "original")] if cases else []
    marked = {column.title: ranked(cells, column) for column in COLUMNS}
    for name, some in by_method(cells).items():
        figures = done(some)
        kept = f"{len(figures)} of {len(some)}"
        if not figures:
            rows.append((f"{name}: {_why_none(some)}", *["–"] * len(COLUMNS), kept))
            continue
        label = f"{name} †" if forgets(figures) is False else name
        row = _row(label, figures, "unlearned")
        shown = [
            f"{text} {marked[column.title].get(name, '')}".strip()
            for column, text in zip(COLUMNS, row[1:-1], strict=True)
        ]
        rows.append((label, *shown, kept))
    if known := [cell for cell in cases if cell["retrained"] is not None]:
        rows.append(_row("retrained", known, "retrained"))
    return Table(caption, ("model", *(column.title for column in COLUMNS), "cells"), tuple(rows))


def _why_none(cells: Sequence[Cell]) -> str:
    reasons = dict.fromkeys(cell["error"]["what"] for cell in cells if "error" in cell)
    return f"failed: {'; '.join(reasons)}" if reasons else "not run yet"


def _row(label: str, cells: Sequence[Cell], model: str) -> tuple[str, ...]:
    figures = []
    for column in COLUMNS:
        values = [value for cell in cells if (value := column.value(cell, model)) is not None]
        figures.append(written(mean_of(values), column.write))
    return (label, *figures, str(len(cells)))


def _kind_blocks(cells: Sequence[Cell]) -> tuple[Block, ...]:
    tasks = dict.fromkeys(cell["task"] for cell in cells)
    seeds = sorted({cell["seed"] for cell in cells})
    caption = f"{len(tasks)} request(s): {', '.join(tasks)}; seeds {', '.join(map(str, seeds))}"
    lines = [first(cells)]
    for name, some in by_method(done(cells)).items():
        known = [cell["facts"] for cell in some if "seconds_of_steps" in cell["facts"]]
        if known:
            steps = mean_of([facts["seconds_of_steps"] for facts in known])
            calls = mean_of([facts["seconds_of_the_call"] for facts in known if "seconds_of_the_call" in facts])
            whole = "" if calls is None else f"; its whole call, copies and measures included: {written(calls, 'two')}"
            lines.append(f"Steps of {name} alone: {written(steps, 'two')} seconds{whole}.")
    return (methods_table(cells, caption), Bullets(tuple(lines)))


def first(cells: Sequence[Cell]) -> str:
    """Who is first, in words."""
    told = []
    quickest: list[str] = []
    for title, keeping in (("Avg. Gap %", False), ("seconds", False), ("seconds", True)):
        column = next(column for column in COLUMNS if column.title == title)
        found = marks(compared := _comparable(cells, column, keeping))
        best = [name for name, mark in found.items() if mark == BEST]
        if keeping and best in ([], quickest):
            continue  # nobody keeps the rest, or the quickest does
        quickest = best
        means = {name: fmean(values.values()) for name, values in compared.items() if values}
        tied = sorted((name for name, mark in found.items() if mark == TIED), key=means.__getitem__)
        among = " among methods that forget" if column.cost else ""
        among += f" and lose at most {100 * KEEPS_WITHIN:g} points of Ret-Acc" if keeping else ""
        if not best:
            told.append(f"Nobody to rank on {title.removesuffix(' %')}{among}.")
            continue
        unit = "%" if title.endswith("%") else "s"
        shown = {name: f"{name} ({WRITERS[column.write](mean)} {unit})" for name, mean in means.items()}
        each = ", ".join(shown[name] for name in tied)
        rest = f"; not significantly worse: {each}" if tied else "; all others are significantly worse"
        if len({case_of(cell) for cell in done(to_rank(cells))}) < TESTED_FROM:
            rest = f"; fewer than {TESTED_FROM} cells a method allow no test"
        if len(compared) == 1:
            rest = ", the only one"
        told.append(f"Smallest {title.removesuffix(' %')}{among}: {shown[best[0]]}{rest}.")
    return " ".join(told)


def _setting(content: Mapping[str, Any]) -> Section:
    settings, machine = content["settings"], content["environment"]
    training, most = settings["training"], settings.get("most_epochs")
    lines = [
        f"Data: {settings.get('data', 'not named')}, {settings['training_images']} training images, "
        f"{settings['classes']} classes; methods see {settings['shown_to_methods']}.",
        f"Model: {settings.get('model', 'not named')}; {training['epochs']} epochs, batch {training['batch_size']}, "
        f"learning rate {training['learning_rate']:g}, and the same without the forget set for the retrained models.",
        f"Tuning: at most {settings['trials']} runs a method"
        + (
            f", seed {settings['tuning_seed']}, on {' and on '.join(settings['tuned_on'].values())}, not scored; "
            f"judged by at most {settings['tuning_scored']} retained and as many held-out images."
            if settings["tuned_on"]
            else ": default numbers as they are."
        )
        + (f" Epochs over the retained images: at most {most}, for every method." if most else ""),
        f"Machine: {machine['hardware']}, torch {machine['torch']}, timm {machine['timm']}, famr {machine['famr']}, "
        f"{settings['precision']}.",
    ]
    weights: dict[int, set[str]] = {}
    for cell in done(content["cells"]):
        weights.setdefault(cell["seed"], set()).add(cell["original_sha256"])
    if mixed := [str(seed) for seed, found in weights.items() if len(found) > 1]:
        lines.append(
            f"The original of seed {', '.join(mixed)} was trained more than once, with other weights each time."
        )
    return Section("What was run", (Bullets((*lines, *NOTES)),))


def _every(cells: Sequence[Cell]) -> Table:
    rows = []
    for cell in cells:
        figures = [
            "–" if (value := column.value(cell, "unlearned")) is None else WRITERS[column.write](value)
            for column in COLUMNS
        ]
        rows.append((cell["method"], cell["task"], str(cell["seed"]), *figures))
    columns = ("method", "request", "seed", *(column.title for column in COLUMNS))
    return Table("One row a cell", columns, tuple(rows), words=3)
