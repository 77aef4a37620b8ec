"""The page and the figures of the audit benchmark, from its result file."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

from benchmarks.markdown import machine_line, markdown_table, page_head

MODELS = ("original", "retrained", "unlearned")
COLOURS = {"original": "#c1440e", "retrained": "#8a8a8a", "default": "#2a6f97", "paper": "#d99a2b"}
WIDTHS = {"original": 4.5, "paper": 2.4, "default": 1.5}
"""Of the lines of the ROC, so that overlapping lines are both visible."""
SMALLEST_RATE = 1e-4
"""The smallest rate that the ROC shows."""


def audit_page(name: str, content: dict[str, Any]) -> str:
    """Every gate with each model's figure and verdict, one table a request and a method; then what it cost."""
    training = content["training"]
    parts = [
        *page_head(content["benchmark"], name),
        f"- Data: {content['data']}\n- Model: {content['model']}; {training['epochs']} epochs, batch "
        f"{training['batch_size']}\n- {content['references']} retrained references a request; "
        f"{content['shadows']} shadow models of {content['shadow_epochs']} epochs each\n"
        f"- {machine_line(content)}",
        "A gate passes if its whole 95 % interval lies within what is allowed: the threshold, or the difference "
        "between retrained models, if that is larger.",
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
            markdown_table([("gate", "threshold", "allowed", *MODELS), *map(_gate, cell["audit"]["checks"])]),
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
    def result(model: str) -> str:
        figure = check["figures"].get(model)
        if figure is None or figure["value"] is None:
            return "–" if figure is None else "not available"
        interval = "" if figure["low"] is None else f" [{figure['low']:.3f}, {figure['high']:.3f}]"
        return f"{figure['value']:.3f}{interval} {check['verdicts'][model]}"

    return check["name"], f"{check['threshold']:g}", f"{check['allowed']:.3f}", *map(result, MODELS)


def draw_audit(content: dict[str, Any], file: Path) -> None:
    """ROC of U-LiRA on a log scale, and the entropy of predictions on the forget set; a row a request."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    requests: dict[str, dict[str, Any]] = {}  # the cells of the methods that are drawn, by request
    for cell in content["cells"]:
        if cell["method"] in COLOURS and "error" not in cell:
            requests.setdefault(cell["request"], {})[cell["method"]] = cell
    if not requests:
        return
    figure = Figure(figsize=(8.4, 3.4 * len(requests)), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(requests), 2, squeeze=False)
    for (left, right), (request, cells) in zip(grid, requests.items(), strict=True):
        _roc(left, cells)
        _entropies(right, cells)
        for axes in (left, right):
            axes.set_title(request, fontsize=10, parse_math=False)
            for side in ("top", "right"):
                axes.spines[side].set_visible(False)
    figure.savefig(file, metadata={"Software": None})


def _roc(axes: Any, cells: dict[str, Any]) -> None:
    """The models before they unlearn, which are the same for every method, and after."""
    first = next(iter(cells.values()))
    curves = {"original": ("before unlearning (LiRA)", first["roc"].get("original"))}
    curves |= {
        method: (f"unlearned, {method} (U-LiRA)", cell["roc"].get("unlearned")) for method, cell in cells.items()
    }
    for name, width in WIDTHS.items():
        label, curve = curves.get(name, ("", None))
        if curve:
            axes.plot(curve["fpr"], curve["tpr"], color=COLOURS[name], label=label, linewidth=width)
    axes.plot([SMALLEST_RATE, 1], [SMALLEST_RATE, 1], color="black", linewidth=0.8, linestyle=":", label="a coin")
    axes.set(xscale="log", yscale="log", xlim=(SMALLEST_RATE, 1), ylim=(SMALLEST_RATE, 1.3))
    axes.set(xlabel="false positive rate", ylabel="true positive rate")
    axes.legend(frameon=False, fontsize=8, loc="lower right")


def _entropies(axes: Any, cells: dict[str, Any]) -> None:
    """Entropy of the predictions on the forget set, by model."""
    first = next(iter(cells.values()))
    models = {model: (model, first["entropy"][model]) for model in ("original", "retrained")}
    models |= {method: (f"unlearned, {method}", cell["entropy"]["unlearned"]) for method, cell in cells.items()}
    for name, (label, bars) in models.items():
        axes.stairs(bars["share"], bars["edges"], color=COLOURS[name], label=label, linewidth=1.6)
    axes.set(xlabel="entropy of answers to the forget set (nats)", ylabel="share of images", xlim=(0, None))
    axes.legend(frameon=False, fontsize=8, loc="upper center")
