"""The page and the figure of the audits on CIFAR-100: every gate with every model, one table a request."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.markdown import machine_line, markdown_table, page_head

CONTROLS = ("original", "retrained", "never saw", "head only", "collapsed")
"""Models of which it is known what a gate has to say: the first columns; the methods follow."""
SIGNS = {"pass": "pass", "fail": "**fail**", "cannot tell": "?"}
COLOURS = {"pass": "#2a9d8f", "fail": "#c1440e", "cannot tell": "#e9c46a", None: "#ededed"}


def audits_page(name: str, content: dict[str, Any]) -> str:
    """What was audited and against what; then each request: the sentence on each method, the gates, the cost."""
    training = content["training"]
    shadows = f"; {content['shadows']} shadow models" if content["shadows"] else "; no shadow models"
    parts = [
        *page_head("Audits on CIFAR-100", name),
        f"- Data: {content['data']}\n- Model: {content['model']}; {training['epochs']} epochs, batch "
        f"{training['batch_size']}\n- {content['references']} retrained models a request{shadows}\n"
        f"- {machine_line(content)}",
        "A model passes a gate where the whole 95 % interval is at most what is allowed. It fails where its value is "
        "more, and the whole interval more than the threshold; otherwise the audit cannot tell (?). The column "
        "*retrained* is the retrained model that is farthest from the others. A gate counts where the original fails "
        "it, retrained models do not, and (gates on likeness aside) a never-saw model does not.",
    ]
    for cell in content["cells"]:
        parts += [f"## {cell['request']}: {cell['forget_images']} images", *_request(cell)]
    return "\n\n".join(parts) + "\n"


def _request(cell: Mapping[str, Any]) -> list[str]:
    audits, seconds = cell["audits"], cell["seconds"]
    sentences = "\n".join(f"- **{method}**: {audit['sentence']}" for method, audit in audits.items())
    models = (*CONTROLS, *audits)
    head = ("gate", "kind", "allowed", *models, *(f"counts for {method}" for method in audits))
    rows = [
        (each["name"], each["kind"], f"{each['allowed']:.3f}", *_cells(audits, each["name"])) for each in _gates(audits)
    ]
    verdicts = [SIGNS.get(_verdict(audits, model), "–") for model in models]
    rows.append(("verdict", "", "", *verdicts, *("" for _ in audits)))
    by_part = ", ".join(f"{part} {value:.1f}" for part, value in seconds["by_part"].items())
    return [
        sentences,
        markdown_table([head, *rows]),
        f"Seconds: retraining {_number(seconds['retraining'])}; the audits of all methods together "
        f"{seconds['audits']:.0f} ({by_part}).",
    ]


def _number(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.1f}"


def _gates(audits: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Gates in the order of the first audit."""
    checks: list[dict[str, Any]] = next(iter(audits.values()))["checks"]
    return checks


def _check(audits: Mapping[str, Any], model: str, gate: str) -> tuple[dict[str, Any], str] | None:
    """The gate in the audit that has the model, and the model's name there."""
    audit = audits.get(model) or next(iter(audits.values()))
    checks = [check for check in audit["checks"] if check["name"] == gate]
    return (checks[0], "unlearned" if model in audits else model) if checks else None


def _cells(audits: Mapping[str, Any], gate: str) -> list[str]:
    """The value and verdict of every model, then for which methods the gate counts."""
    cells = []
    for model in (*CONTROLS, *audits):
        found = _check(audits, model, gate)
        figure = None if found is None else found[0]["figures"].get(found[1])
        if found is None or figure is None:
            cells.append("–")
        elif figure["value"] is None:
            cells.append("not available")
        else:
            verdict = found[0]["verdicts"][found[1]]
            cells.append(f"{figure['value']:.3f} [{figure['low']:.3f}, {figure['high']:.3f}] {SIGNS[verdict]}")
    for method in audits:
        found = _check(audits, method, gate)
        cells.append("–" if found is None else "yes" if found[0]["counts"] else f"no: {found[0]['not_counted']}")
    return cells


def _verdict(audits: Mapping[str, Any], model: str) -> str:
    audit = audits.get(model) or next(iter(audits.values()))
    verdict = audit["verdicts"].get("unlearned" if model in audits else model)
    return "–" if verdict is None else SIGNS[verdict]


def draw_audits(content: dict[str, Any], file: Path) -> None:
    """A tile for each gate and model, coloured by the verdict, pale where the gate does not count."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch, Rectangle

    cells = content["cells"]
    if not cells:
        return
    gates = list(dict.fromkeys(check["name"] for cell in cells for check in _gates(cell["audits"])))
    width, height = 2.2 + 2.0 * len(cells), 1.4 + 0.27 * len(gates)
    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    for index, axes in enumerate(figure.subplots(1, len(cells), sharey=True, squeeze=False)[0]):
        audits = cells[index]["audits"]
        models = (*CONTROLS, *audits)
        for row, gate in enumerate(gates):
            for column, model in enumerate(models):
                found = _check(audits, model, gate)
                verdict = None if found is None else found[0]["verdicts"].get(found[1])
                pale = found is not None and not found[0]["counts"]
                axes.add_patch(
                    Rectangle((column, row), 0.94, 0.9, color=COLOURS[verdict], alpha=0.3 if pale else 1.0, linewidth=0)
                )
        axes.set(xlim=(0, len(models)), ylim=(len(gates), 0))
        axes.set_title(cells[index]["request"], fontsize=9, parse_math=False)
        axes.set_xticks([column + 0.47 for column in range(len(models))], models, rotation=60, fontsize=7, ha="right")
        axes.set_yticks(
            [row + 0.45 for row in range(len(gates))], [gate.replace("_", " ") for gate in gates], fontsize=7
        )
        axes.tick_params(length=0)
        for side in axes.spines.values():
            side.set_visible(False)
    labels = {"pass": "pass", "fail": "fail", "cannot tell": "cannot tell", None: "not measured"}
    handles = [Patch(color=COLOURS[verdict], label=label) for verdict, label in labels.items()]
    handles.append(Patch(color="#c1440e", alpha=0.3, label="pale: does not count"))
    figure.legend(handles=handles, loc="outside lower right", ncols=5, fontsize=7, frameon=False)
    figure.savefig(file, metadata={"Software": None})
