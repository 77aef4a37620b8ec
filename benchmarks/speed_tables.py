"""The page and the figure of `famr bench speed`, and the page of whole commands, from their result files."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from benchmarks.certificate_tables import markdown
from famr.bench.speed_checks import NO_TIE, same_accuracies
from famr.bench.speed_figure import draw_speed, panels
from famr.bench.speed_page import speed_page
from famr.report.markdown import as_markdown


def speed_markdown(name: str, content: dict[str, Any]) -> str:
    """The page that `famr bench speed` itself writes, with the file it is made from."""
    title, _, rest = as_markdown(speed_page(content)).partition("\n\n")
    return f"{title}: {name.removeprefix('speed-')}\n\nMade from `{name}.json` by `make tables`.\n\n{rest}"


def end_to_end_page(name: str, content: dict[str, Any]) -> str:
    """Whole commands, beside retraining, and where their time went."""
    machine, training = content["environment"], content["training"]
    cells = {cell["name"]: cell for cell in content["cells"]}
    anew = statistics.median(cells["retraining"]["seconds"])
    methods = [cell for label, cell in cells.items() if label not in ("retraining", "loops")]
    of_steps = cells["retraining"]["seconds_of_steps"]
    heads = ("command", "runs", "seconds", "% of retraining", "seconds of steps", "% of retraining's", "of each run")
    rows: list[tuple[str, ...]] = [(*heads, "steps and what prepares them", "Ret-Acc %", "For-Acc %")]
    for cell in methods:
        whole, scores = statistics.median(cell["seconds"]), cell["scores"]["unlearned"]
        pairs = ((whole, anew), (cell["seconds_of_steps"], of_steps))
        took = [text for ours, theirs in pairs for text in (f"{ours:.2f}", f"{100 * ours / theirs:.1f}")]
        prepared = f"{cell['seconds_of_all']:.2f}" if "seconds_of_all" in cell else "–"
        each = ", ".join(f"{seconds:.2f}" for seconds in cell.get("every_seconds_of_steps", ())) or "–"
        rows.append((cell["name"], str(len(cell["seconds"])), *took, each, prepared, *_accuracies(scores)))
    reached = _accuracies(cells["retraining"].get("scores"))
    rows.append(("retraining", "1", f"{anew:.2f}", "100", f"{of_steps:.2f}", "100", "–", "–", *reached))
    parts: list[tuple[str, ...]] = [("part", *(cell["name"] for cell in methods))]
    every = list(dict.fromkeys(part for cell in methods for part in cell["parts"]))
    every.sort(key="all of it".__eq__)
    parts += [(part, *(f"{cell['parts'].get(part, 0.0):.2f}" for cell in methods)) for part in every]
    setting = [
        f"- Data: {content['data']}",
        f"- Model: {content['model']}; {training['epochs']} epochs, batch {training['batch_size']}",
        f"- Machine: {machine['hardware']}, torch {machine['torch']}, famr {machine['famr']}",
    ]
    told = [
        f"# {name}",
        f"Made from `{name}.json` by `make tables`.",
        "\n".join(setting),
        markdown(rows),
        "Medians. Each command is a process of its own, timed from outside: Python, its libraries, the model, the "
        "images and the written folder are part of it. Retraining: `famr train --without-class`, likewise."
        + _sketch_told(methods),
        "## Where the time goes",
        markdown(parts),
        "Seconds of one more run each; of a part inside another only the inner one counts. Images are decoded by "
        "whoever needs them first.",
    ]
    if "loops" in cells:
        told += _both_loops(cells["loops"])
    return "\n\n".join(told) + "\n"


def attention_page(name: str, content: dict[str, Any]) -> str:
    """What a plan takes and saves, size by size."""
    heads = ("images", "heads", "tokens", "a plan takes, ms", "a call without, µs", "with, µs", "saved a token, ns")
    rows: list[tuple[str, ...]] = [(*heads, "a plan pays from, tokens")]
    for cell in content["cells"]:
        plan = cell["planned"]["first"] - cell["unplanned"]["first"]
        later = [cell[way]["later"] for way in ("unplanned", "planned")]
        saved = (later[0] - later[1]) / (cell["images"] * cell["heads"] * cell["tokens"])
        sizes = (str(cell[column]) for column in ("images", "heads", "tokens"))
        took = (f"{1e3 * plan:.0f}", *(f"{1e6 * seconds:.0f}" for seconds in later), f"{1e9 * saved:.2f}")
        rows.append((*sizes, *took, f"{plan / saved:.1e}" if saved > 0 else "never"))
    machine = content["environment"]
    return (
        f"# {name}\n\nMade from `{name}.json` by `make tables`. `python -m benchmarks.attention` measures it.\n\n"
        f"- Machine: {machine['hardware']}, torch {machine['torch']}, famr {machine['famr']}\n\n{markdown(rows)}\n\n"
        "Forwards and backwards, with deterministic kernels; tokens are counted for each head, image and call. A plan "
        "is drawn up in the first call of each size: its time beyond that of a first call without.\n"
    )


def _sketch_told(methods: list[dict[str, Any]]) -> str:
    """What a sketch took, which serves all later requests."""
    took = [cell["seconds_of_sketch"] for cell in methods if "seconds_of_sketch" in cell]
    return f" The sketch took {took[0]:.2f} seconds, once." if took else ""


def _accuracies(scores: dict[str, Any] | None) -> list[str]:
    """Retained and forget accuracy; of a model that nobody measured, a dash."""
    if scores is None:
        return ["–", "–"]
    return [f"{100 * scores[column]:.1f}" for column in ("retain_accuracy", "forget_accuracy")]


def _both_loops(found: dict[str, Any]) -> list[str]:
    """What a plain loop and ours made of the same model, and how long their steps took."""
    agreement = found["agreement"]
    rows: list[tuple[str, ...]] = [("steps by", "seconds", "Ret-Acc %", "For-Acc %", "CE", "Ent", "KL")]
    for label in ("original", "plain", "plain_in_fp32", "ours"):
        if (scores := agreement.get(label)) is None:
            continue
        took = f"{found[label]['median']:.2f}" if label in found else "–"
        percent = [f"{100 * scores[column]:.2f}" for column in ("retain_accuracy", "forget_accuracy")]
        nats = [f"{scores[f'forget_{name}']:.3f}" for name in ("cross_entropy", "entropy", "kl")]
        rows.append((label.replace("_", " "), took, *percent, *nats))
    return [
        "## A plain loop and ours",
        f"The paper's preset, {found['sample_passes']:,} sample passes in {found['steps']} steps, in the precision of "
        "the device; seconds of all steps, the median of two calls each.",
        markdown(rows),
        f"Weights apart, as a share of how far they went: {agreement['weights_apart']:.1e}. Accuracies: "
        f"{same_accuracies('loops', agreement).found}." + (f" {NO_TIE}" if agreement.get("ties_aside") else ""),
    ]


def draw_if_any(content: dict[str, Any], file: Path) -> None:
    """Its figure, where a stage left something to draw."""
    if panels(content):
        draw_speed(content, file)
