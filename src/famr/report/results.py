"""The section with the results: the five metrics, the gaps to the retrained model, and the figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from famr.metrics.tables import NOT_AVAILABLE, in_percent
from famr.report.content import Block, Bullets, Section, Table, Text
from famr.report.figures import draw_class_changes, draw_entropies, draw_epochs, draw_trade_off
from famr.report.measure import Measurements
from famr.report.records import RunRecords

UNITS = {
    "retain_accuracy": "Ret-Acc, %",
    "forget_accuracy": "For-Acc, %",
    "forget_test_accuracy": "For-Acc held-out, %",
    "forget_cross_entropy": "CE, nats",
    "forget_entropy": "Ent, nats",
    "forget_kl": "KL, nats",
}
DEFINITIONS = (
    "Ret-Acc: accuracy on held-out retained images; higher is better.",
    "For-Acc: accuracy on the forget set; held-out: on images of the same classes that were not trained on.",
    "CE: cross-entropy of the true class on the forget set. Ent: entropy of the predictions on the forget set.",
    "KL: divergence of the predictions on the forget set from the original's.",
    "Gap: absolute difference to a model trained without the forget set; smaller is better.",
)
IMAGE_SETS = {"retain": "held-out retained", "forget": "forget", "forget_test": "held-out forget"}


def results_section(records: RunRecords, measurements: Measurements | None, reason_missing: str | None) -> Section:
    """The metrics and figures of the models before and after unlearning.

    Args:
        records: The records of the run.
        measurements: What was measured for the report; None where the run could not be opened again.
        reason_missing: Why `measurements` is None.
    """
    blocks: list[Block] = []
    if records.metrics is None:
        blocks.append(Text(f"The five metrics are {NOT_AVAILABLE}: the run recorded none and {reason_missing}."))
    else:
        blocks += _metrics(records.metrics)
    if len(records.history) > 1:
        blocks.append(draw_epochs(records.history))
    if measurements is None:
        blocks.append(Text(f"Entropies and accuracies by class are {NOT_AVAILABLE}: {reason_missing}."))
    else:
        blocks.append(draw_entropies(measurements.entropies, len(measurements.labels)))
        if measurements.changes is None:
            reason = "the original was not found, or there are no labelled held-out images"
            blocks.append(Text(f"Accuracies by class are {NOT_AVAILABLE}: {reason}."))
        else:
            blocks.append(draw_class_changes(measurements.changes, measurements.labels))
    trade_off = draw_trade_off(records.history, records.metrics or {})
    if trade_off is None:
        reason = "retain accuracy was not recorded at every epoch"
        blocks.append(Text(f"Forget accuracy against retain accuracy is {NOT_AVAILABLE}: {reason}."))
    else:
        blocks.append(trade_off)
    return Section("Results", tuple(blocks))


def _metrics(metrics: Mapping[str, Any]) -> list[Block]:
    gaps = metrics.get("gap") or {}
    models = {name: metrics.get(name) or {} for name in ("original", "unlearned", "retrained")}
    rows = tuple(
        (name, *(in_percent(column, values.get(column)) for column in UNITS))
        for name, values in {**models, "gap": gaps}.items()
    )
    counts = ", ".join(
        f"{IMAGE_SETS.get(name, name)} {count}"
        for name, count in metrics["unlearned"]["counts"].items()
        if count is not None
    )
    caption = f"The five metrics. Images: {counts}. The gap of accuracies is in percentage points."
    blocks: list[Block] = [Table(caption, ("model", *UNITS.values()), rows), Bullets(DEFINITIONS)]
    if (divergence := gaps.get("forget_js_divergence")) is not None:
        distance = "Jensen–Shannon divergence to the retrained model on the forget set"
        blocks.append(Text(f"{distance}: {divergence:.3f} nats (0 to 0.693)."))
    reasons = metrics.get("not_available") or {}
    if reasons:
        lines = [f"{UNITS.get(name, name)}: {NOT_AVAILABLE}, {reason}." for name, reason in reasons.items()]
        blocks.append(Bullets(tuple(lines)))
    return blocks
