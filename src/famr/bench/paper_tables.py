"""The paper's Table 1 and Table 2 with our rows beside its own, and its observations held against our figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from famr.bench.contenders import PAPER
from famr.bench.paper_setting import DEFAULT, SIZES, cells_of, printed
from famr.bench.statements import statements
from famr.bench.statistics import mean_of
from famr.bench.tables import done, written
from famr.metrics.tables import COLUMNS, in_percent
from famr.report.content import Block, Bullets, Report, Section, Table, Text

OURS = {PAPER: "Alg. 1", DEFAULT: "default"}
SHOWN = {name: title for name, title in COLUMNS.items() if name != "forget_test_accuracy"}


def paper_page(content: Mapping[str, Any]) -> Report:
    """The whole page of a table."""
    cells = content["cells"]
    failed = [cell for cell in cells if "error" in cell]
    missing = [cell for cell in cells if cell.get("missing")]
    told = f"{len(done(cells))} of {len(cells)} cells have figures, {len(failed)} failed, {len(missing)} not run yet."
    outcome = "fail" if failed else "cannot tell" if missing or not cells else "pass"
    sections = [
        Section("The table", (paper_table(content), Bullets(tuple(_notes(content))))),
        Section("The paper's observations", (statement_table(content),)),
    ]
    if failed or missing:
        lines = [f"Failed: {_named(cell)}: {cell['error']['what']}" for cell in failed]
        lines += [f"Not run yet: {_named(cell)}" for cell in missing]
        sections.append(Section("What did not run", (Bullets(tuple(lines)),)))
    sections.append(Section("Settings", _settings(content)))
    title = f"The paper's Table {content['table']}, on {content['data']}"
    return Report(title, outcome, told, tuple(sections))  # type: ignore[arg-type]


def _named(cell: Mapping[str, Any]) -> str:
    return f"{cell['size']} ({cell['setting']}), {cell['method']}, {cell['task']}, seed {cell['seed']}"


def paper_table(content: Mapping[str, Any]) -> Table:
    """For each size: the paper's row, then ours."""
    paper = printed()["tables"][str(content["table"])]
    rows: list[tuple[str, ...]] = []
    for size in SIZES:
        figures = [in_percent(name, paper["rows"][size][name]) for name in SHOWN]
        rows.append((size, f"the paper's own ({paper['data']})", *figures, "–", "–"))
        for run in content["runs"]:
            if run["size"] == size:
                rows += _run_rows(run, done(cells_of(content, run)))
    head = ("model", "who", *SHOWN.values(), "seconds", "cells")
    return Table(f"{paper['data']} in the paper, {content['data']} here", head, tuple(rows), words=2)


def _run_rows(run: Mapping[str, Any], found: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    cases = list({(cell["task"], cell["seed"]): cell for cell in found}.values())
    groups = [("original", "original", cases)]
    for name, told in OURS.items():
        some = [cell for cell in found if cell["method"] == name]
        groups.append((told if some or not cases else f"{told}: no figures", "unlearned", some))
    known = [cell for cell in cases if cell["retrained"] is not None]
    groups.append(("retrained" if known or not cases else "retrained: not available", "retrained", known))
    rows = []
    for told, model, cells in groups:
        figures = [_mean(name, [cell[model][name] for cell in cells]) for name in SHOWN]
        seconds = [cell["facts"]["seconds_of_steps"] for cell in cells] if model == "unlearned" else []
        if model == "retrained":
            seconds = [cell["retraining"]["seconds"] for cell in cells]
        who = f"{told} ({run['setting']})"
        rows.append((run["size"], who, *figures, written(mean_of(seconds), "two"), str(len(cells))))
    return rows


def _mean(name: str, values: Sequence[float]) -> str:
    return written(mean_of(values), "percent" if name.endswith("accuracy") else "two")


def _notes(content: Mapping[str, Any]) -> list[str]:
    paper = printed()
    stands = content["data"] != paper["tables"][str(content["table"])]["data"]
    lines = [f"The paper's figures: {paper['citation']}. Its setting: {paper['method']}."]
    if stands:
        lines.append(
            f"The paper used {paper['tables'][str(content['table'])]['data']}; here {content['data']} stands in, so "
            "the rows are not of the same data."
        )
    return [
        *lines,
        "± is half of a 95 % interval (Student's t over classes and seeds); the paper gives none.",
        "Ret-Acc on held-out images of the other classes; For-Acc, CE, Ent and KL on the forget set; nats. KL is "
        "KL(original ‖ unlearned) of the softmax outputs; the paper does not say its direction.",
        "Alg. 1: with the paper's numbers; default: FAMR(); retrained: not available where no such model was trained. "
        "Seconds are those of the steps; of a retrained model, of its training.",
        "Tables are of 4 in 5 held-out images; the figures follow retained accuracy on the others, which methods see.",
    ]


def statement_table(content: Mapping[str, Any]) -> Block:
    """Each observation with its verdict."""
    found = statements(content)
    if not found:
        return Text("Nothing was run yet.")
    rows = tuple((each.says, each.setting, each.verdict, each.evidence) for each in found)
    return Table(
        "Alg. 1 with the paper's numbers. Sizes: mean of ViT-B and ViT-L against mean of ViT-Ti and ViT-S on the same "
        "class and seed, models of the same setting only; decided where the 95 % interval lies on one side",
        ("the paper says", "setting", "verdict", "evidence"),
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
