"""The results of a bench as a page: what was run, how to read it, for each kind of request a table with marks and one
with the differences to the best, what did not run, the tuning, and every cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from famr.bench.columns import (
    AVERAGE_GAP,
    COLUMNS,
    FORGETS_WITHIN,
    FORMATS,
    JS_TO_RETRAINED,
    KEEPS_WITHIN,
    SECONDS,
    Cell,
    Column,
    by_case,
    by_method,
    case_key,
    cell_kind,
    finished_cells,
    forgets,
)
from famr.bench.comparison import accurate_methods, rank_column, rankable_cells
from famr.bench.statistics import (
    BEST,
    FEWEST_BLOCKS,
    TIED,
    Blocks,
    Mean,
    Ranking,
    blocked_mean,
    blocks_of,
    paired_difference,
)
from famr.bench.tuning_tables import GATE, limit_line, tuning_table
from famr.report.content import Block, Bullets, Report, Section, Table, Text

KINDS = {"class": "Classes", "concept": "Concepts", "samples": "Samples"}
READING = (
    f"Marks: {BEST} best; {TIED} not shown to be worse than the best, which does not show that it is as good: with few "
    "requests or seeds even large differences stay unproven; no mark: significantly worse, or not ranked. Where "
    "nothing was tested only the best is marked, and the line above the table says so. † does not forget (For-Acc more "
    f"than {100 * FORGETS_WITHIN:g} points above retrained), so its costs are not ranked.",
    "Intervals: ± is half of a 95 % interval (Student's t). With three requests or more it is over requests, each "
    "averaged over its seeds, and speaks of requests like these, forgotten by these originals; with fewer it is over "
    "seeds, and speaks of these requests alone. The line above the table says which.",
    "Tests: paired t tests over the same requests (or seeds), two-sided, of all pairs of ranked methods in a column, "
    "with Holm's correction over these pairs: 5 % for the column as a whole, although the best was chosen by the same "
    "figures. Fewer than three requests and fewer than three seeds: not tested.",
    "Differences to the best are paired by request and seed; each ± is of that one comparison, without correction. As "
    "the best was chosen by the same figures, they are rather too large than too small. g is Hedges' g of the paired "
    "differences: their mean in units of their standard deviation over requests (or seeds), corrected for how few "
    "there are; at 1, about five in six further ones would have the same sign.",
    "Not ranked: retrain, which is a retrained model of another seed, where it was run: no method can be expected to "
    "come closer; and methods with a failed or missing cell. While a bench is unfinished, only requests and seeds "
    "count that most methods have run.",
    "Not shown: other models, data and requests than those above; attacks other than the one of MIA-efficacy, "
    "relearning and what is left in the weights, which famr audit measures.",
)
DEFINITIONS = (
    "Best: what is nearest to the retrained model in Ret-Acc, For-Acc, CE, Ent, KL and MIA-efficacy, and the "
    "smallest in the remaining columns.",
    "Ret-Acc: held-out images that are not forgotten; For-Acc, CE, Ent, KL and JS: the forget set; nats. KL is to the "
    "original.",
    "Avg. Gap: mean distance to the retrained model of For-Acc, accuracy on retained training images, Ret-Acc and "
    "MIA-efficacy. MIA-efficacy: share of the forget set that a membership attack classifies as non-members; "
    "where the attack can hardly separate members from non-members it is as random as a coin flip, and with it a "
    "quarter of Avg. Gap.",
    "Seconds cover everything that a method does, preparations included, once model and images are on the device; of "
    "FAMR see below the table. Tuning is not counted for any method, nor what a process does once: on a GPU every "
    "method has run before it is timed. "
    "FDE: passes of an image through a network, divided by the number of training images. Peak memory is counted on a "
    "GPU only, beyond what is allocated when a method begins: the images, the original.",
)


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
    counts = ((content["methods"], "methods"), (content["tasks"], "requests"), ({c["seed"] for c in cells}, "seeds"))
    verdict = ", ".join(_count(len(things), plural) for things, plural in counts)
    verdict += (
        f": {len(finished)} of {len(cells)} cells have figures, {len(failed)} failed, {len(missing)} not run yet."
    )
    sections = [
        _setting(content),
        Section("How to read the tables", (Bullets(READING),)),
        Section("What the columns are", (Bullets(DEFINITIONS),)),
    ]
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
    """Original, every method, retrained: means with intervals and marks.

    Args:
        cells: Of one kind of request.
        caption: Of the table.
    """
    cases = list({case_key(cell): cell for cell in finished_cells(cells)}.values())  # methods share these models
    rows = [_row("original", cases, "original")] if cases else []
    marks = {column.title: rank_column(cells, column).marks() for column in COLUMNS}
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
    means = [format_mean(blocked_mean(by_case(cells, column, model)), column.format) for column in COLUMNS]
    return (label, *means, str(len(cells)))


def _kind_blocks(cells: Sequence[Cell]) -> tuple[Block, ...]:
    tasks = dict.fromkeys(cell["task"] for cell in cells)
    seeds = sorted({cell["seed"] for cell in cells})
    caption = f"{_count(len(tasks), 'requests')}: {', '.join(tasks)}; seeds {', '.join(map(str, seeds))}"
    blocks: list[Block] = [Bullets((ranking_summary(cells), comparison_summary(cells))), methods_table(cells, caption)]
    lines = []
    for name, of_method in by_method(finished_cells(cells)).items():
        steps, calls = (_fact(of_method, fact) for fact in ("seconds_of_steps", "seconds_of_the_call"))
        if steps is not None:
            whole = (
                "; in the table: the whole call, with the evaluations by which it chooses its strength"
                if calls is None
                else f"; whole call, with copies and evaluation: {format_mean(calls, 'two')}"
            )
            lines.append(f"Steps of {name} alone: {format_mean(steps, 'two')} seconds{whole}.")
    if lines:
        blocks.append(Bullets(tuple(lines)))
    if (differences := differences_table(cells)) is not None:
        blocks.append(differences)
    return tuple(blocks)


def _fact(cells: Sequence[Cell], name: str) -> Mean | None:
    return blocked_mean({case_key(cell): cell["facts"][name] for cell in cells if name in cell["facts"]})


LISTED = 5
"""So many methods that are not significantly worse are named; the table marks all."""


def _count(number: int, plural: str) -> str:
    """A number with its noun.

    >>> _count(1, "Classes"), _count(1, "seeds"), _count(2, "requests")
    ('1 class', '1 seed', '2 requests')
    """
    noun = plural.lower()
    if number == 1:
        noun = noun.removesuffix("es") if noun.endswith("sses") else noun.removesuffix("s")
    return f"{number} {noun}"


COMPARED = (AVERAGE_GAP, JS_TO_RETRAINED, SECONDS)
"""Columns whose differences are in the page; results.json has those of all."""


def differences_table(cells: Sequence[Cell]) -> Table | None:
    """By how much each ranked method is worse than the best one, with the effect size and the corrected p-value.

    Args:
        cells: Of one kind of request.

    Returns:
        None where there are no two methods to compare.
    """
    rankings = {column: ranking for column in COMPARED if len((ranking := rank_column(cells, column)).figures) > 1}
    if not rankings:
        return None
    names: dict[str, None] = {}
    for ranking in rankings.values():
        means = ranking.means
        names |= dict.fromkeys(sorted(means, key=means.__getitem__))
    rows = [
        (name, *(text for column, ranking in rankings.items() for text in _against_best(name, column, ranking)))
        for name in names
    ]
    head = [heading for column in rankings for heading in (f"{column.title}: worse by", "g", "p")]
    return Table("Differences to the best method; p is corrected over all pairs", ("method", *head), tuple(rows))


def _against_best(name: str, column: Column, ranking: Ranking) -> tuple[str, str, str]:
    best = ranking.best()
    if best is None or name not in ranking.figures:
        return "not ranked", "–", "–"
    if name == best:
        return f"best {BEST}", "–", "–"
    found = paired_difference(ranking.figures[name], ranking.figures[best])
    assert found is not None  # ranked methods have the same cells
    p_value = ranking.corrected.get(frozenset((best, name)))
    g = "–" if found.standardised is None else format_effect(found.standardised)
    return format_mean(found.mean, column.format), g, "not tested" if p_value is None else format_p_value(p_value)


def format_effect(standardised: float) -> str:
    """A standardised difference; beyond 100 its size says nothing more.

    Args:
        standardised: Hedges' g.

    >>> format_effect(1.234), format_effect(250.0)
    ('1.2', '> 100')
    """
    return f"{standardised:.1f}" if abs(standardised) <= 100 else ("> 100" if standardised > 0 else "< -100")


def format_p_value(p_value: float) -> str:
    """A p-value to three digits.

    Args:
        p_value: Between 0 and 1.

    >>> format_p_value(0.0321), format_p_value(0.0004)
    ('0.032', '< 0.001')
    """
    return f"{p_value:.3f}" if p_value >= 0.001 else "< 0.001"


def comparison_summary(cells: Sequence[Cell]) -> str:
    """What intervals and tests of a table are over, and for how many comparisons they are corrected.

    Args:
        cells: Of one kind of request.
    """
    cases = dict.fromkeys(map(case_key, finished_cells(rankable_cells(cells))), 0.0)
    blocks, requests = blocks_of(cases), len({request for request, _ in cases})
    if len(blocks.means) < FEWEST_BLOCKS:
        few = f"{_count(requests, 'requests')} and {_count(len({seed for _, seed in cases}), 'seeds')}"
        needed = f"it takes {FEWEST_BLOCKS} requests, or {FEWEST_BLOCKS} seeds that all requests have"
        intervals = f" Intervals are over {_blocks_text(blocks, requests)}." if len(blocks.means) > 1 else ""
        return f"Not tested: {few}; {needed}.{intervals}"
    counted = []
    for what, cost in (("", False), (" of costs", True)):
        rankings = [rank_column(cells, column) for column in COLUMNS if column.cost == cost]
        pairs = {len(each.corrected): len(each.figures) for each in rankings if each.corrected}
        several = " or ".join(f"{_count(number, 'pairs')} of {methods} methods" for number, methods in pairs.items())
        counted.append(f"{several} in a column{what}" if several else f"no pair in a column{what}")
    over = f"Intervals and tests are over {_blocks_text(blocks, requests)}."
    return f"{over} Holm's correction is over {', '.join(counted)}."


def _blocks_text(blocks: Blocks, requests: int) -> str:
    number = _count(len(blocks.means), blocks.unit)
    if blocks.unit == "requests":
        return f"{number}, each averaged over its seeds"
    return f"{number} and speak of {'this request' if requests == 1 else 'these requests'} alone"


def ranking_summary(cells: Sequence[Cell]) -> str:
    """Which method is best by Avg. Gap and by seconds, in sentences.

    Args:
        cells: Of one kind of request.
    """
    sentences = []
    quickest: str | None = None
    for column, accurate_only in ((AVERAGE_GAP, False), (SECONDS, False), (SECONDS, True)):
        ranking = rank_column(cells, column)
        ranked = [name for name in ranking.figures if not accurate_only or name in accurate_methods(cells)]
        best, marks, means = ranking.best(ranked), ranking.marks(ranked), ranking.means
        if accurate_only and best in (None, quickest):
            continue  # no method keeps its accuracy, or the quickest one does
        quickest = best
        among = " among methods that forget" if column.cost else ""
        among += f" and lose at most {100 * KEEPS_WITHIN:g} points of Ret-Acc" if accurate_only else ""
        what = f"{column.title.removesuffix(' %')}{among}"
        if best is None:
            sentences.append(f"No method to rank by {what}.")
            continue
        unit = "%" if column.title.endswith("%") else "s"
        shown = {name: f"{name} ({FORMATS[column.format](means[name])} {unit})" for name in ranked}
        tied = sorted((name for name, mark in marks.items() if mark == TIED), key=means.__getitem__)
        listed = ", ".join(shown[name] for name in tied[:LISTED])
        listed += f" and {len(tied) - LISTED} more" if len(tied) > LISTED else ""
        rest = f"; not significantly worse: {listed}" if tied else "; all others are significantly worse"
        if not ranking.corrected:
            rest = "; not tested"
        if len(ranked) == 1:
            rest = ", the only one"
        sentences.append(f"Smallest {what}: {shown[best]}{rest}.")
    return " ".join(sentences)


def _setting(content: Mapping[str, Any]) -> Section:
    settings, machine = content["settings"], content["environment"]
    training = settings["training"]
    lines = [
        f"Data: {settings.get('data', 'not named')}, {settings['training_images']} training images, "
        f"{settings['classes']} classes; methods see {settings['shown_to_methods']}.",
        f"Model: {settings.get('model', 'not named')}; {training['epochs']} epochs, batch {training['batch_size']}, "
        f"learning rate {training['learning_rate']:g}; retrained models likewise, without the forget set.",
        *_requests(content),
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
    return Section("What was run", (Bullets(tuple(lines)),))


def _requests(content: Mapping[str, Any]) -> list[str]:
    """What was forgotten, with which seeds, by which methods."""
    cells = content["cells"]
    seeds = sorted({cell["seed"] for cell in cells})
    originals = "the original was given" if content["settings"].get("given_original") else "an original for each seed"
    return [
        f"Forgotten: {'; '.join(content['tasks'])}; each request by itself, from the same original.",
        f"Seeds {', '.join(map(str, seeds))}: {originals}, and a retrained model for each request and seed."
        if any(cell["retrained"] for cell in finished_cells(cells))
        else f"Seeds {', '.join(map(str, seeds))}: {originals}.",
        f"Methods: {', '.join(content['methods'])}.",
    ]


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
