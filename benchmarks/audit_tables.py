"""The page and the figures of the audit benchmark, from its result file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.certificate_tables import markdown

MODELS = ("original", "retrained", "unlearned")
COLOURS = {"original": "#c1440e", "retrained": "#8a8a8a", "unlearned": "#2a6f97"}


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
        verdicts = ", ".join(f"{model}: {verdict}" for model, verdict in cell["audit"]["verdicts"].items())
        parts += [
            f"## {cell['kind']}, {cell['method']}",
            f"Verdicts: {verdicts}. Forgetting took {cell['seconds']['forgetting']:.1f} s, the audit "
            f"{cell['seconds']['audit']:.0f} s.",
            markdown([("gate", "threshold", "allowed", *MODELS), *map(_gate, cell["audit"]["checks"])]),
            "Seconds of the audit: " + ", ".join(f"{part} {value:.1f}" for part, value in _costs(cell)) + ".",
        ]
    return "\n\n".join(parts) + "\n"


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

    cells = [cell for cell in content["cells"] if cell["method"] == "default"]
    figure = Figure(figsize=(8.4, 3.4 * len(cells)), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(cells), 2, squeeze=False)
    for (left, right), cell in zip(grid, cells, strict=True):
        for model, curve in cell["roc"].items():
            said = "before unlearning (LiRA)" if model == "original" else "unlearned (U-LiRA)"
            left.plot(curve["fpr"], curve["tpr"], color=COLOURS[model], label=said)
        left.plot([1e-4, 1], [1e-4, 1], color="black", linewidth=0.8, linestyle=":", label="a coin")
        left.set(xscale="log", yscale="log", xlim=(1e-4, 1), ylim=(1e-4, 1.2))
        left.set(xlabel="false positive rate", ylabel="true positive rate", title=f"{cell['kind']}: {cell['request']}")
        for model, bars in cell["entropy"].items():
            right.stairs(bars["share"], bars["edges"], color=COLOURS[model], label=model, linewidth=1.6)
        right.set(xlabel="entropy of answers to the forget set (nats)", ylabel="share of images")
        for axes in (left, right):
            axes.legend(frameon=False, fontsize=8)
            for side in ("top", "right"):
                axes.spines[side].set_visible(False)
    figure.savefig(file, metadata={"Software": None})
