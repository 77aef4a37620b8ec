"""The paper's Table 1 and Table 2 with our rows beside its own, and its observations tested on our figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.paper.observations import observations
from benchmarks.paper.setting import DEFAULT, SIZES, printed, run_cells
from famr.bench.columns import case_key, finished_cells
from famr.bench.methods import FAMR_PAPER
from famr.bench.statistics import Figures, blocked_mean
from famr.bench.tables import format_mean
from famr.metrics.tables import COLUMNS, in_percent
from famr.report.content import Block, Bullets, Report, Section, Table, Text

METHODS = {FAMR_PAPER: "Alg. 1", DEFAULT: "default"}
METRICS = {name: title for name, title in COLUMNS.items() if name != "forget_test_accuracy"}


def paper_page(content: Mapping[str, Any]) -> Report:
    """The whole page of a table."""
    cells = content["cells"]
    finished = finished_cells(cells)
    failed = [cell for cell in cells if "error" in cell]
    missing = [cell for cell in cells if cell.get("missing")]
    verdict = f"{len(finished)} of {len(cells)} cells have figures, {len(failed)} failed, {len(missing)} not run yet."
    outcome = "fail" if failed else "cannot tell" if missing or not cells else "pass"
    sections = [
        Section("The table", (paper_table(content), Bullets(tuple(_notes(content))))),
        Section("The paper's observations", (observations_table(content),)),
    ]
    if failed or missing:
        lines = [f"Failed: {_label(cell)}: {cell['error']['what']}" for cell in failed]
        lines += [f"Not run yet: {_label(cell)}" for cell in missing]
        sections.append(Section("What did not run", (Bullets(tuple(lines)),)))
    sections.append(Section("Settings", _settings(content)))
    title = f"The paper's Table {content['table']}, on {content['data']}"
    return Report(title, outcome, verdict, tuple(sections))  # type: ignore[arg-type]


def _label(cell: Mapping[str, Any]) -> str:
    return f"{cell['size']} ({cell['setting']}), {cell['method']}, {cell['task']}, seed {cell['seed']}"


def paper_table(content: Mapping[str, Any]) -> Table:
    """For each size: the paper's row, then ours."""
    paper = printed()["tables"][str(content["table"])]
    rows: list[tuple[str, ...]] = []
    for size in SIZES:
        figures = [in_percent(name, paper["rows"][size][name]) for name in METRICS]
        rows.append((size, f"the paper's own ({paper['data']})", *figures, "–", "–"))
        for run in content["runs"]:
            if run["size"] == size:
                rows += _run_rows(run, finished_cells(run_cells(content, run)))
    head = ("model", "who", *METRICS.values(), "seconds", "cells")
    return Table(f"{paper['data']} in the paper, {content['data']} here", head, tuple(rows), words=2)


def _run_rows(run: Mapping[str, Any], finished: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    cases = list({(cell["task"], cell["seed"]): cell for cell in finished}.values())
    groups = [("original", "original", cases)]
    for name, title in METHODS.items():
        of_method = [cell for cell in finished if cell["method"] == name]
        groups.append((title if of_method or not cases else f"{title}: no figures", "unlearned", of_method))
    retrained = [cell for cell in cases if cell["retrained"] is not None]
    groups.append(("retrained" if retrained or not cases else "retrained: not available", "retrained", retrained))
    rows = []
    for label, model, cells in groups:
        figures = [_mean(name, {case_key(cell): cell[model][name] for cell in cells}) for name in METRICS]
        seconds = {}
        if model == "unlearned":
            seconds = {case_key(cell): cell["facts"]["seconds_of_steps"] for cell in cells}
        elif model == "retrained":
            seconds = {case_key(cell): cell["retraining"]["seconds"] for cell in cells}
        who = f"{label} ({run['setting']})"
        rows.append((run["size"], who, *figures, format_mean(blocked_mean(seconds), "two"), str(len(cells))))
    return rows


def _mean(name: str, figures: Figures) -> str:
    return format_mean(blocked_mean(figures), "percent" if name.endswith("accuracy") else "two")


def _notes(content: Mapping[str, Any]) -> list[str]:
    paper = printed()
    data = paper["tables"][str(content["table"])]["data"]
    lines = [f"The paper's figures: {paper['citation']}. Its setting: {paper['method']}."]
    if content["data"] != data:
        lines.append(f"The paper used {data}; here {content['data']} stands in, so the rows are not of the same data.")
    return [
        *lines,
        "± is half of a 95 % interval (Student's t over classes, each averaged over its seeds; over seeds with fewer "
        "than three classes); the paper gives none.",
        "Ret-Acc on held-out images of the remaining classes; For-Acc, CE, Ent and KL on the forget set; nats. KL is "
        "KL(original ‖ unlearned) of the softmax outputs; the paper does not name its direction.",
        "Alg. 1: with the paper's numbers; default: FAMR(); retrained: not available where no such model was trained. "
        "Seconds are those of the steps; of a retrained model, of its training.",
        "Tables are of 4 in 5 held-out images; the figures show retained accuracy on the fifth, which methods may see.",
    ]


def observations_table(content: Mapping[str, Any]) -> Block:
    """Each observation with its verdict."""
    found = observations(content)
    if not found:
        return Text("Nothing was run yet.")
    rows = tuple((each.statement, each.setting, each.verdict, each.evidence) for each in found)
    return Table(
        "Alg. 1 with the paper's numbers. Sizes: mean of ViT-B and ViT-L against mean of ViT-Ti and ViT-S on the same "
        "class and seed, models of the same setting only; decided where the 95 % interval lies on one side",
        ("the paper states", "setting", "verdict", "evidence"),
        rows,
        words=4,
    )


def _settings(content: Mapping[str, Any]) -> tuple[Block, ...]:
    lines = []
    for run in content["runs"]:
        settings, machine, training = run["settings"], run["environment"], run["settings"]["training"]
        lines.append(
            f"{run['size']}, {run['setting']}: {settings['model']}; {training['epochs']} epochs, batch "
            f"{training['batch_size']}, learning rate {training['learning_rate']:g}; {len(run['tasks'])} classes "
            f"({', '.join(run['tasks'])}); {machine['hardware']}, torch {machine['torch']}, famr {machine['famr']}"
        )
    return (Bullets(tuple(lines)),) if lines else (Text("Nothing was run yet."),)
