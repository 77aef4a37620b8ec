"""The section with the figures: five metrics, gaps, and the drawings behind them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from famr.metrics.tables import NOT_AVAILABLE, in_percent
from famr.report.content import Block, Bullets, Section, Table, Text
from famr.report.facts import Facts
from famr.report.figures import entropies, forgetting, frontier, who_paid
from famr.report.measure import Measured

UNITS = {
    "retain_accuracy": "Ret-Acc, %",
    "forget_accuracy": "For-Acc, %",
    "forget_test_accuracy": "For-Acc held-out, %",
    "forget_cross_entropy": "CE, nats",
    "forget_entropy": "Ent, nats",
    "forget_kl": "KL, nats",
}
MEANINGS = (
    "Ret-Acc: accuracy on held-out images that stay. High is good.",
    "For-Acc: accuracy on the forget set; held-out: on images of the same class that were not trained on.",
    "CE: cross-entropy of the true class on the forget set. Ent: entropy of the answers there.",
    "KL: how far the answers on the forget set have moved from the original's.",
    "Gap: distance of the unlearned model to a model trained without the forget set. Small is good.",
)


def reached(facts: Facts, measured: Measured | None, why_not: str | None) -> Section:
    """What the models answer, before and after."""
    blocks: list[Block] = []
    if facts.metrics is None:
        blocks.append(Text(f"The five metrics are {NOT_AVAILABLE}: the run recorded none and {why_not}."))
    else:
        blocks += _metrics(facts.metrics)
    if len(facts.history) > 1:
        blocks.append(forgetting(facts.history))
    if measured is None:
        blocks.append(Text(f"Entropies and accuracies by class are {NOT_AVAILABLE}: {why_not}."))
    else:
        blocks.append(entropies(measured.entropies, len(measured.labels)))
        if measured.changes is None:
            reason = "the original was not found, or there are no labelled held-out images"
            blocks.append(Text(f"Accuracies by class are {NOT_AVAILABLE}: {reason}."))
        else:
            blocks.append(who_paid(measured.changes, measured.labels))
    place = frontier(facts.history, facts.metrics or {})
    if place is None:
        blocks.append(
            Text(
                "Where the run stands between forgetting and keeping is not drawn: it was not followed epoch by epoch."
            )
        )
    else:
        blocks.append(place)
    return Section("What it reaches", tuple(blocks))


def _metrics(metrics: Mapping[str, Any]) -> list[Block]:
    rows = []
    for name in ("original", "unlearned", "retrained"):
        found = metrics.get(name) or {}
        rows.append((name, *(in_percent(column, found.get(column)) for column in UNITS)))
    gaps = metrics.get("gap") or {}
    rows.append(("gap", *(in_percent(column, gaps.get(column)) for column in UNITS)))
    counts = {name: count for name, count in metrics["unlearned"]["counts"].items() if count is not None}
    words = {"retain": "held-out retained", "forget": "forget", "forget_test": "held-out forgotten"}
    told = ", ".join(f"{words.get(name, name)} {count}" for name, count in counts.items())
    caption = f"The five metrics. Images: {told}. The gap of accuracies is in points."
    blocks: list[Block] = [Table(caption, ("model", *UNITS.values()), tuple(rows)), Bullets(MEANINGS)]
    if (js := gaps.get("forget_js_divergence")) is not None:
        blocks.append(
            Text(f"Jensen–Shannon divergence to the retrained model on the forget set: {js:.3f} nats (0 to 0.693).")
        )
    reasons = metrics.get("not_available") or {}
    if reasons:
        lines = [f"{UNITS.get(name, name)}: {NOT_AVAILABLE}, {why}." for name, why in reasons.items()]
        blocks.append(Bullets(tuple(lines)))
    return blocks
