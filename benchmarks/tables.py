"""Markdown tables and figures from the committed result files, and from nothing else: `make tables`.

    python -m benchmarks.tables

Each `results/NAME.json` gets a `results/NAME.md` beside it; docs/benchmarks.md is made of all of them.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from scipy import stats

from benchmarks.audit_page import audits_page, draw_audits
from benchmarks.audit_tables import audit_page, draw_audit
from benchmarks.calibration_page import calibration_page
from benchmarks.certificate_tables import (
    certified_head_page,
    deviation_page,
    draw_signs,
    influence_page,
    sisa_page,
)
from benchmarks.fault_tables import fuzz_page, kills_page, soak_page
from benchmarks.frontier_figure import draw_frontier
from benchmarks.markdown import machine_line, markdown_table, page_head
from benchmarks.never_saw_page import never_saw_page
from benchmarks.overview import bench_page, overview
from benchmarks.paper import figures as paper_figures
from benchmarks.published_settings import published_page
from benchmarks.whole_calls import editions_page, whole_calls_page
from famr.data.request import Request
from famr.metrics.tables import COLUMNS, in_percent

RESULTS = Path(__file__).parent / "results"
DOCUMENT = RESULTS.parents[1] / "docs/benchmarks.md"
OTHER_PAGES: dict[str, Callable[[str, dict[str, Any]], str]] = {
    "methods": bench_page,
    "published settings": published_page,
    "paper tables": bench_page,
    "influence_sign": influence_page,
    "sisa": sisa_page,
    "certified_head": certified_head_page,
    "certificates": deviation_page,
    "audit_calibration": calibration_page,
    "audits": audits_page,
    "audit": audit_page,
    "kills": kills_page,
    "soak": soak_page,
    "fuzz": fuzz_page,
    "whole calls": whole_calls_page,
    "editions": editions_page,
    "never saw": never_saw_page,
}
FIGURES = {
    "audit-cifar100-vit_tiny": draw_audit,
    "audits-cifar100-vit_tiny": draw_audits,
    "frontier-cifar100-vit_tiny": draw_frontier,
    "influence_sign-digits": draw_signs,
}
PAPER_ROWS = {
    # Sanga, Singh, Dubey 2025, Table 1, row ViT-Ti; it has no held-out column
    "paper-cifar100-vit_tiny": {
        "retain_accuracy": 0.701,
        "forget_accuracy": 0.013,
        "forget_cross_entropy": 3.42,
        "forget_entropy": 2.21,
        "forget_kl": 2.41,
    }
}


def main() -> None:
    """Write every page and every figure."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for file in sorted(RESULTS.glob("*.json")):
        content = json.loads(file.read_text(encoding="utf-8"))
        file.with_suffix(".md").write_text(page(file.stem, content), encoding="utf-8")
        print(f"{file.stem}.md")
        if content["benchmark"] == "paper tables":
            for number in paper_figures.FIGURES:
                paper_figures.draw_figure(content, number, file.with_name(f"{file.stem}-figure-{number}.png"))
    for stem, draw in FIGURES.items():
        if (file := RESULTS / f"{stem}.json").is_file():
            draw(json.loads(file.read_text(encoding="utf-8")), file.with_suffix(".png"))
            print(f"{stem}.png")
    DOCUMENT.write_text(document(), encoding="utf-8")


def document() -> str:
    """docs/benchmarks.md from the committed result files."""
    files = sorted(RESULTS.glob("*.json"))
    pages = {file.stem: page(file.stem, json.loads(file.read_text(encoding="utf-8"))) for file in files}
    return overview(pages, sorted(file.name for file in RESULTS.glob("*.png")))


def page(name: str, content: dict[str, Any]) -> str:
    """One result file as a page: what was run, the means, every cell."""
    for kind, draw in OTHER_PAGES.items():
        if content["benchmark"].startswith(kind):
            return draw(name, content)
    if any("kind" in cell for cell in content["cells"]):
        return requests_page(name, content)
    cells = [cell for cell in content["cells"] if "error" not in cell]
    parts = [
        *page_head(content["benchmark"], name),
        _setting(content),
        f"## Means ({len(cells)} {'run' if len(cells) == 1 else 'runs'})",
        _means(name, cells),
        "± is half of a 95 % interval (Student's t over the runs). Ret-Acc on held-out images that are not forgotten; "
        "For-Acc, CE, Ent, KL and JS on the forget set; CE, Ent, KL and JS in nats. The differences "
        "of Ret-Acc are in points, taken run by run.",
        *_between_seeds(content),
        "## Every run",
        _every(cells),
    ]
    parts += [f"Seed {cell['seed']}, {_request(cell)}: {cell['note']}" for cell in cells if "note" in cell]
    failed = [cell for cell in content["cells"] if "error" in cell]
    parts += [f"Failed: {cell.get('name') or json.dumps(cell['method'])}: {cell['error']}" for cell in failed]
    return "\n\n".join(parts) + "\n"


def _setting(content: dict[str, Any]) -> str:
    method = content.get("method")
    rates = sorted({cell["method"]["learning_rate"] for cell in content["cells"] if "method" in cell})
    originals = ", ".join(
        f"{100 * record['test_accuracy']:.1f} % (seed {seed})" for seed, record in content["originals"].items()
    )
    training = content["training"]
    lines = [
        f"- Data: {content['data']}",
        f"- Model: {content['model']}; {training['epochs']} epochs, batch {training['batch_size']}, "
        f"learning rate {training['learning_rate']:g}; test accuracy of the originals {originals}",
        "- Methods: see `METHODS` in the benchmark; every setting is in the JSON"
        if method is None
        else f"- Method: {method['optimiser']}, η {' or '.join(f'{rate:g}' for rate in rates)}, "
        f"λ {method['strength']:g}, {method['epochs']} epochs, batch {method['batch_size']} "
        f"({method['reduction']}), α {method['alpha']:g}"
        + (f", style layer {method['style_layer']}, β balanced at the start" if method["style_layer"] else ""),
        f"- {machine_line(content, 'torch', 'timm')}",
    ]
    masked = [m for m in (cell.get("method", {}) for cell in content["cells"]) if m.get("target") == "masked"]
    if masked and not any(m.get("demotion") for m in masked):
        lines.append("- An earlier default, without the penalty that pushes forgotten classes down (`demotion`)")
    if any(m.get("anchor") == "kfac" and m.get("function_strength") for m in masked):
        lines.append("- An earlier default, which also used the curvature of retained images (`kfac`)")
    return "\n".join(lines)


def _means(name: str, cells: list[dict[str, Any]]) -> str:
    """A row for the original, one for each method, one for the retrained model."""
    compared = ("Ret-Acc − original", "Ret-Acc − retrained", "JS to retrained", "seconds")
    rows = [("model", "runs", *COLUMNS.values(), *compared)]
    methods = list(dict.fromkeys(cell.get("name", "unlearned") for cell in cells))
    cases = list({json.dumps((cell["request"], cell["seed"])): cell for cell in cells}.values())  # shared by methods
    rows.append(_mean_row("original", "original", cases))
    for method in methods:
        label = "unlearned" if len(methods) == 1 else method
        rows.append(_mean_row(label, "unlearned", [c for c in cells if c.get("name", "unlearned") == method]))
    rows.append(_mean_row("retrained", "retrained", cases))
    if name in PAPER_ROWS:
        printed = PAPER_ROWS[name]
        figures = [in_percent(column, printed[column]) if column in printed else "–" for column in COLUMNS]
        rows.append(("the paper's own row", "–", *figures, "–", "–", "–", "–"))
    return markdown_table(rows)


SUMMARY = {
    "paper": "paper's algorithm",
    "uniform, free head, 20 images a class": "uniform target, 20 retained images a class",
    "default, sketch only": "**default**, no retained images (a sketch)",
    "default, 20 images a class": "**default**, 20 retained images a class",
}


def summary(content: dict[str, Any]) -> str:
    """The class frontier in a few rows, as the README shows it."""
    cells = [cell for cell in content["cells"] if "error" not in cell]
    cases = list({json.dumps((cell["request"], cell["seed"])): cell for cell in cells}.values())
    groups = [("original", "original", cases)]
    groups += [(label, "unlearned", [c for c in cells if c["name"] == name]) for name, label in SUMMARY.items()]
    groups.append(("retrained", "retrained", cases))
    rows: list[tuple[str, ...]] = [
        ("", "retained accuracy − retrained, points", "forget accuracy %", "entropy", "JS to retrained", "seconds")
    ]
    for label, model, of_model in groups:
        if len(of_model) == len(cases):  # a method that was run on some of the cases alone cannot be compared here
            difference, js, seconds = _mean_row(label, model, of_model)[-3:]
            forgotten = [_mean(column, _known(c[model][column] for c in of_model)) for column in SUMMARY_METRICS]
            rows.append((label, difference, *forgotten, js, seconds))
    return markdown_table(rows)


SUMMARY_METRICS = ("forget_accuracy", "forget_entropy")


def _mean_row(label: str, model: str, cells: list[dict[str, Any]]) -> tuple[str, ...]:
    figures = [_mean(column, _known(cell[model][column] for cell in cells)) for column in COLUMNS]
    js = [cell["gap"]["forget_js_divergence"] for cell in cells]
    seconds = [cell["seconds"][model] for cell in cells if model in cell["seconds"] and "note" not in cell]
    differences = [
        _points([cell[model]["retain_accuracy"] - cell[other]["retain_accuracy"] for cell in cells])
        if model != other
        else "–"
        for other in ("original", "retrained")
    ]
    nearness = _mean("js", js) if model == "unlearned" else "–"
    return (label, str(len(cells)), *figures, *differences, nearness, _mean("seconds", seconds))


def _between_seeds(content: dict[str, Any]) -> list[str]:
    """How far two retrained models of different seeds are from one another, where it was measured."""
    if "js_between_retrained_seeds" not in content:
        return []
    by_class = content["js_between_retrained_seeds"]
    listed = ", ".join(f"{name} {statistics.fmean(values):.3f}" for name, values in by_class.items())
    mean = statistics.fmean(statistics.fmean(values) for values in by_class.values())
    return [f"JS between two retrained models of different seeds on the forget set: {mean:.3f} in the mean; {listed}."]


def requests_page(name: str, content: dict[str, Any]) -> str:
    """The page of the other kinds of request: a table a kind."""
    kinds = {kind: [cell for cell in content["cells"] if cell["kind"] == kind] for kind in KINDS}
    parts = [*page_head(content["benchmark"], name), _setting(content)]
    for kind, cells in kinds.items():
        if cells:
            parts += [f"## {KINDS[kind]}", PAGES[kind](cells)]
        shorter = sorted({c["kind"] for c in content["cells"] if c["kind"].startswith(f"{kind}, ")})
        for other in shorter:
            parts += [f"### {other.capitalize()}", PAGES[kind]([c for c in content["cells"] if c["kind"] == other])]
    parts.append("± is half of a 95 % interval (Student's t over the runs). Times include every preparation.")
    return "\n\n".join(parts) + "\n"


def _concepts(cells: list[dict[str, Any]]) -> str:
    return "\n\n".join([f"Forgotten: {', '.join(sorted({_request(cell) for cell in cells}))}.", _means("", cells)])


def _samples(cells: list[dict[str, Any]]) -> str:
    metrics = list(cells[0]["retrained"])
    rows = [("model", *(f"{metric.replace('_', ' ')} %" for metric in metrics), "Avg. Gap", "share of retraining time")]
    for model in ("original", "unlearned", "retrained"):
        figures = [_mean("accuracy", [cell[model][metric] for cell in cells]) for metric in metrics]
        gaps = [cell["average_gap"][model] for cell in cells if model in cell["average_gap"]]
        shares = [cell["seconds"]["with_preparation"] / cell["seconds"]["retrained"] for cell in cells]
        gap = f"{statistics.fmean(gaps):.4f}" if gaps else "–"
        rows.append((model, *figures, gap, f"{100 * statistics.fmean(shares):.1f} %" if model == "unlearned" else "–"))
    return markdown_table(rows)


def _sequences(cells: list[dict[str, Any]]) -> str:
    models = ("original", "unlearned", "retrained")
    highest = ("highest For-Acc % of a class", "the same, held-out")
    rows = [("seed", *(f"{model} Ret-Acc %" for model in models), *highest, "sum of drifts", "seconds")]
    for cell in cells:
        worst = [
            max(accuracies[part] for accuracies in cell["classes"].values())
            for part in ("forget_accuracy", "forget_test_accuracy")
        ]
        retained = [in_percent("accuracy", cell["retain_accuracy"][m]) for m in models]
        sums = [sum(step[part] for step in cell["steps"]) for part in ("drift", "seconds")]
        rows.append(
            (str(cell["seed"]), *retained, *(in_percent("accuracy", w) for w in worst), *(f"{s:.2f}" for s in sums))
        )
    gap = [cell["retain_accuracy"]["unlearned"] - cell["retain_accuracy"]["retrained"] for cell in cells]
    order = f"Forgotten in this order: {', '.join(step['class'] for step in cells[0]['steps'])}."
    return "\n\n".join([order, markdown_table(rows), f"Ret-Acc − retrained: {_points(gap)} points."])


KINDS = {"concept": "Superclasses", "samples": "Random samples", "sequence": "One class after another"}
PAGES = {"concept": _concepts, "samples": _samples, "sequence": _sequences}


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _every(cells: list[dict[str, Any]]) -> str:
    headings = [*COLUMNS.values()]
    rows = [
        (
            "forgotten",
            "method",
            "seed",
            "η",
            "α",
            *headings,
            "retrained Ret-Acc %",
            "drift",
            "drift bound",
            "Gram distance",
        )
    ]
    for cell in cells:
        first, last = (cell["history"][row]["style_distance"] for row in (0, -1))
        rows.append(
            (
                _request(cell),
                cell.get("name", "–"),
                str(cell["seed"]),
                f"{cell['method']['learning_rate']:g}",
                f"{cell['method']['alpha']:g}",
                *(in_percent(column, cell["unlearned"][column]) for column in COLUMNS),
                in_percent("accuracy", cell["retrained"]["retain_accuracy"]),
                f"{cell['drift']:.3f}",
                f"{cell['drift_bound']:.1f}" if cell["drift_bound"] is not None else "not available",
                "–" if first is None else f"{first:.3g} → {last:.3g} ({100 * (last / first - 1):+.0f} %)",
            )
        )
    return markdown_table(rows)


def _request(cell: dict[str, Any]) -> str:
    return Request.from_json(cell["request"]).describe()


def _mean(column: str, values: list[float]) -> str:
    if not values:
        return "–"
    mean = in_percent(column, statistics.fmean(values))
    if len(values) < 2:
        return mean
    half = stats.t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    return f"{mean} ± {in_percent(column, half)}"


def _points(shares: list[float]) -> str:
    """A mean difference of shares, in points."""
    return _mean("points", [100 * share for share in shares])


if __name__ == "__main__":
    main()
