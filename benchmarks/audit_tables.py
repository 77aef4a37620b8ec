"""The page and the figures of the audit benchmark, from its result file."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

from benchmarks.certificate_tables import markdown

MODELS = ("original", "retrained", "unlearned")
COLOURS = {"original": "#c1440e", "retrained": "#8a8a8a", "unlearned": "#2a6f97"}

CURVES = (("original", "before unlearning (LiRA)", 3.0), ("unlearned", "unlearned (U-LiRA)", 1.5))
"""Of the ROC, with the width of each line: where one lies on the other, both are seen."""
LEAST = 1e-4
"""The smallest rate that the ROC shows."""


def audit_page(name: str, content: dict[str, Any]) -> str:
    """Every gate with each model's figure and verdict, one table a request and a method; then what it cost."""
    machine, training = content["environment"], content["training"]
    parts = [
        f"# {content['benchmark']}",
        f"Made from `{name}.json` by `make tables`.",
        f"- Data: {content['data']}\n- Model: {content['model']}; {training['epochs']} epochs, batch "
        f"{training['batch_size']}\n- {content['references']} retrained references a request; "
        f"{content['shadows']} shadow models of {content['shadow_epochs']} epochs each\n"
        f"- Machine: {machine['hardware']}, torch {machine['torch']}, famr {machine['famr']}",
        "A gate passes where its whole 95 % interval keeps what is allowed: the threshold, or what retrained models "
        "differ by among themselves, if that is more.",
    ]
    for cell in content["cells"]:
        if "error" in cell:
            reason = html.escape(" ".join(cell["error"].split()))
            parts += [f"## {cell['kind']}, {cell['method']}", f"Failed, so there are no figures: {reason}"]
            continue
        verdicts = ", ".join(f"{model}: {verdict}" for model, verdict in cell["audit"]["verdicts"].items())
        parts += [
            f"## {cell['kind']}, {cell['method']}",
            f"Verdicts: {verdicts}. Forgetting took {cell['seconds']['forgetting']:.1f} s, the audit "
            f"{cell['seconds']['audit']:.0f} s.{_wider(content, cell)}",
            markdown([("gate", "threshold", "allowed", *MODELS), *map(_gate, cell["audit"]["checks"])]),
            "Seconds of the audit: " + ", ".join(f"{part} {value:.1f}" for part, value in _costs(cell)) + ".",
        ]
    return "\n\n".join(parts) + "\n"


def _wider(content: dict[str, Any], cell: dict[str, Any]) -> str:
    """How many shadows could not forget within the method's own budget."""
    count = cell.get("shadows_with_wider_budget", 0)
    if not count:
        return ""
    return f" Of {content['shadows']} shadows {count} forgot within a budget of {content['wider_budget']:g} only."


def _costs(cell: dict[str, Any]) -> list[tuple[str, float]]:
    return [(part, value) for part, value in cell["seconds"].items() if part not in ("forgetting", "audit")]


def _gate(check: dict[str, Any]) -> tuple[str, ...]:
    def told(model: str) -> str:
        figure = check["figures"].get(model)
        if figure is None or figure["value"] is None:
            return "–" if figure is None else "not available"
        interval = "" if figure["low"] is None else f" [{figure['low']:.3f}, {figure['high']:.3f}]"
        return f"{figure['value']:.3f}{interval} {check['verdicts'][model]}"

    return check["name"], f"{check['threshold']:g}", f"{check['allowed']:.3f}", *map(told, MODELS)


def draw_audit(content: dict[str, Any], file: Path) -> None:
    """ROC of U-LiRA on a log scale, and the entropy of the answers to the forget set; a row a request, default only."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    cells = [cell for cell in content["cells"] if cell["method"] == "default" and "error" not in cell]
    if not cells:
        return
    figure = Figure(figsize=(8.4, 3.4 * len(cells)), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(cells), 2, squeeze=False)
    for (left, right), cell in zip(grid, cells, strict=True):
        for model, said, width in CURVES:
            if curve := cell["roc"].get(model):
                left.plot(curve["fpr"], curve["tpr"], color=COLOURS[model], label=said, linewidth=width)
        left.plot([LEAST, 1], [LEAST, 1], color="black", linewidth=0.8, linestyle=":", label="a coin")
        left.set(xscale="log", yscale="log", xlim=(LEAST, 1), ylim=(LEAST, 1.15))
        left.set(xlabel="false positive rate", ylabel="true positive rate")
        left.legend(frameon=False, fontsize=8, loc="lower right")
        for model in MODELS:
            bars = cell["entropy"][model]
            right.stairs(bars["share"], bars["edges"], color=COLOURS[model], label=model, linewidth=1.6)
        right.set(xlabel="entropy of answers to the forget set (nats)", ylabel="share of images", xlim=(0, None))
        right.legend(frameon=False, fontsize=8, loc="upper right")
        for axes in (left, right):
            axes.set_title(cell["request"], fontsize=10, parse_math=False)
            for side in ("top", "right"):
                axes.spines[side].set_visible(False)
    figure.savefig(file, metadata={"Software": None})
