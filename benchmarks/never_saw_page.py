"""The page of the benchmark `never_saw`: means over requests and seeds, classes and samples apart."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.markdown import machine_line, markdown_table, page_head

COLUMNS = {
    "js": "JS to retrained",
    "tell_tale": "two-sample AUC",
    "entropy": "entropy",
    "log_odds": "log-odds of the true class",
    "correlation": "correlation of log-odds",
    "forget_accuracy": "For-Acc %",
    "retain_accuracy": "Ret-Acc %",
    "retain_accuracy_gap": "Ret-Acc − retrained",
    "seconds": "seconds",
    "share_of_retraining": "% of retraining",
}
PERCENT = {"forget_accuracy", "retain_accuracy", "retain_accuracy_gap", "share_of_retraining"}


def never_saw_page(name: str, content: dict[str, Any]) -> str:
    """The setting, one table for classes and one for samples, what the columns are."""
    training = content["training"]
    reported = (
        "requests that settings were chosen on" if content["tuning"] else "requests that no setting was chosen on"
    )
    parts = [
        *page_head(content["benchmark"], name),
        f"- Data: {content['data']}\n- Model: {content['model']}; {training['epochs']} epochs, batch "
        f"{training['batch_size']}; test accuracy of the originals {_originals(content)}\n"
        f"- {content['references']} retrained references a request; {reported}\n"
        f"- Means over requests and seeds; in brackets the smallest and the largest\n- {machine_line(content)}",
    ]
    for kind, title in (("class", "One class"), ("samples", "A tenth of the training images")):
        rows = [row for row in content["cells"] if row["request"].startswith(kind)]
        if rows:
            requests = sorted({row["named"] for row in rows})
            seeds = sorted({row["seed"] for row in rows})
            parts += [
                f"## {title}",
                f"{', '.join(requests)}; seeds {', '.join(map(str, seeds))}.",
                markdown_table([("variant", "rows", *COLUMNS.values()), *_means(rows)]),
            ]
    parts.append(
        "*retrained*: each retrained model against the others; no method can be expected to come closer. *original*: "
        "doing nothing. JS, entropy and log-odds on the forget set, in nats. Two-sample AUC: a classifier that sees "
        "predictions on the forget set has to tell the model from retrained ones. Correlation: of the log-odds of the "
        "true class with the mean of retrained models, over forget images. Ret-Acc: held-out images that are not "
        "forgotten, without those that calibrated a run. Seconds: of the whole call once the model is on its device, "
        "proxies included; a sketch is taken once, and not counted."
    )
    if sketches := content.get("sketches"):
        parts.append(
            "Sketches: "
            + "; ".join(
                f"seed {seed}: {each['seconds']:.0f} s, {each['bytes_of_proxies'] / 2**20:.0f} MiB of proxies"
                for seed, each in sketches.items()
            )
            + "."
        )
    failed = [row for row in content["cells"] if "error" in row]
    parts += [f"Failed: {row['variant']}, {row['named']}, seed {row['seed']}: {row['error']}" for row in failed]
    return "\n\n".join(parts) + "\n"


def _originals(content: Mapping[str, Any]) -> str:
    return ", ".join(f"{100 * each['test_accuracy']:.1f} %" for each in content["originals"].values())


def _means(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """A row for each variant; all retrained models share one."""
    grouped: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if "error" not in row:
            name = "retrained" if row["variant"].startswith("retrained") else row["variant"]
            grouped.setdefault(name, []).append(row)
    return [(name, str(len(group)), *(_cell(group, column) for column in COLUMNS)) for name, group in grouped.items()]


def _cell(rows: Sequence[Mapping[str, Any]], column: str) -> str:
    values = [row[column] * (100 if column in PERCENT else 1) for row in rows if row.get(column) is not None]
    if not values:
        return "–"
    digits = 1 if column in PERCENT or column in ("log_odds", "seconds") else 3
    low, mean, high = (f"{value:.{digits}f}" for value in (min(values), statistics.fmean(values), max(values)))
    return mean if len(values) == 1 or low == high else f"{mean} ({low} to {high})"
