"""Pages and figures of the certificates' benchmarks, from their result files."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from benchmarks.markdown import machine_line, markdown_table, page_head
from famr.certificates.page import format_number

COLOURS = {"corrected": "#2a6f97", "printed": "#c1440e", "no step": "#8a8a8a"}


def influence_page(name: str, content: dict[str, Any]) -> str:
    """The error of the influence step by its sign."""
    rows: list[tuple[str, ...]] = [("samples removed", *COLOURS)]
    for size, errors in _by_size(content).items():
        rows.append((str(size), *(f"{statistics.fmean(errors[sign]):.3f}" for sign in COLOURS)))
    parts = [
        *page_head(content["benchmark"], name),
        "‖step − truth‖/‖truth‖ of the influence step on a ridge-regularised softmax regression of the digits, where "
        f"the truth is exact retraining; means over {len(content['cells']) // len(_by_size(content))} draws. With the "
        "sign of [FAMR, Eq. (7)] as printed the step goes the wrong way and doubles the error of doing nothing.",
        markdown_table(rows),
        f"{machine_line(content)}.",
    ]
    return "\n\n".join(parts) + "\n"


def _by_size(content: dict[str, Any]) -> dict[int, dict[str, list[float]]]:
    by_size: dict[int, dict[str, list[float]]] = {}
    for cell in content["cells"]:
        errors = by_size.setdefault(cell["removed"], {sign: [] for sign in COLOURS})
        for sign, value in cell["relative_error"].items():
            errors[sign].append(value)
    return by_size


def draw_signs(content: dict[str, Any], file: Path) -> None:
    """The error against the number of removed samples, one line a sign."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.8), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    by_size = _by_size(content)
    for sign, colour in COLOURS.items():
        means = [statistics.fmean(errors[sign]) for errors in by_size.values()]
        axes.plot(list(by_size), means, "o-", color=colour, label=sign)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("samples removed")
    axes.set_ylabel("‖step − truth‖ / ‖truth‖")
    axes.legend(frameon=False)
    axes.grid(alpha=0.25)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(file, metadata={"Software": None})


def sisa_page(name: str, content: dict[str, Any]) -> str:
    """Accuracy, and image passes of a removal, by shards and slices."""
    groups: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for cell in content["cells"]:
        groups.setdefault((cell["shards"], cell["slices"]), []).append(cell)
    counts = [removal["removed"] for removal in content["cells"][0]["removals"]]
    rows: list[tuple[str, ...]] = [
        (
            "shards × slices",
            "accuracy by vote %",
            "by mean probability %",
            *(f"passes again, {n} removed %" for n in counts),
        )
    ]
    rows[0] += tuple(f"expected, {n} removed %" for n in counts)
    rows[0] += tuple(f"speed-up, {n} removed" for n in counts)
    for (shards, slices), cells in groups.items():
        accuracy = [
            statistics.fmean(cell["trained"]["accuracy"][how] for cell in cells) for how in ("majority", "mean")
        ]
        shares = [
            statistics.fmean(cell["removals"][index][part] for cell in cells)
            for part in ("share", "expected_share")
            for index in range(len(counts))
        ]
        faster = [statistics.fmean(cell["removals"][i]["speedup_passes"] for cell in cells) for i in range(len(counts))]
        figures = (f"{100 * value:.1f}" for value in (*accuracy, *shares))
        rows.append((f"{shards} × {slices}", *figures, *(f"{value:.1f}" for value in faster)))
    training = content["training"]
    parts = [
        *page_head(content["benchmark"], name),
        f"- Data: {content['data']}, {content['train_images']} training images\n- Model: {content['model']}; "
        f"{training['epochs']} epochs, batch {training['batch_size']}\n- {machine_line(content)}",
        markdown_table(rows),
        f"Means over {len({cell['seed'] for cell in content['cells']})} seeds. Passes again: image passes of the "
        "removal, as a share of training all shards anew; expected: the mean over random draws of that size, counted "
        "without training; speed-up: all passes by those of the removal. Seconds are in the JSON: those of the first "
        "training include decoding and compilation, so that the passes are the better measure.",
    ]
    return "\n\n".join(parts) + "\n"


def certified_head_page(name: str, content: dict[str, Any]) -> str:
    """Removals, accuracy and time by strength and noise."""
    rows: list[tuple[str, ...]] = [
        (
            "λ",
            "σ",
            "accuracy without noise %",
            "released %",
            "removals one by one within ε",
            "distance to retraining",
            "its bound",
            "ms a removal",
            "ms to train anew",
        )
    ]
    for cell in content["cells"]:
        rows.append(
            (
                f"{cell['strength']:g}",
                f"{cell['sigma']:g}",
                f"{100 * cell['accuracy_without_noise']:.1f}",
                f"{100 * cell['accuracy_released']:.1f}",
                str(cell["removals_within_budget"]),
                f"{cell['distance_to_retraining']:.2g}",
                f"{cell['its_bound']:.2g}",
                f"{1000 * cell['seconds_a_removal']:.1f}",
                f"{1000 * cell['seconds_of_training']:.1f}",
            )
        )
    first = content["cells"][0]
    parts = [
        *page_head(content["benchmark"], name),
        f"ε = {first['epsilon']:g}, δ = {first['delta']:g}; {content['images']} images, {content['classes']} classes, "
        f"{content['width']} features of a backbone that never saw them; one draw of the noise. Removals end where the "
        "budget refuses the next. Distance and bound are of the weights before the noise, after the last removal.",
        markdown_table(rows),
        f"{machine_line(content)}.",
    ]
    return "\n\n".join(parts) + "\n"


def deviation_page(name: str, content: dict[str, Any]) -> str:
    """Claims by method, and what they cost."""
    cells = content["cells"]
    heads = [f"{cell['name']}, {part}" for cell in cells for part in ("value", "bound", "holds")]
    rows: list[tuple[str, ...]] = [("claim", *heads)]
    for index, claim in enumerate(cells[0]["certificate"]["claims"]):
        row: list[str] = []
        for cell in cells:
            values = cell["certificate"]["claims"][index]
            if values["not_available"]:
                row += ["not available", "–", "–"]
            else:
                fails = any(assumption["status"] == "fails" for assumption in values["assumptions"])
                verdict = {None: "–", True: "yes", False: "no"}[values["holds"]]
                row += [
                    format_number(values["value"]),
                    format_number(values["bound"]),
                    verdict + (", an assumption fails" if fails else ""),
                ]
        rows.append((claim["name"], *row))
    costs: list[tuple[str, ...]] = [("seconds", *(cell["name"] for cell in cells))]
    costs += [(part, *(f"{cell['seconds'][part]:.1f}" for cell in cells)) for part in cells[0]["seconds"]]
    parts = [
        *page_head(content["benchmark"], name, ". What each claim means: `docs/certificates.md`"),
        f"- Data: {content['data']}\n- Model: {content['model']}\n- {machine_line(content)}",
        markdown_table(rows),
        markdown_table(costs),
    ]
    return "\n\n".join(parts) + "\n"
