"""Metrics as text: percent for accuracies, nats for the rest."""

from __future__ import annotations

NOT_AVAILABLE = "not available"

COLUMNS = {
    "retain_accuracy": "Ret-Acc %",
    "forget_accuracy": "For-Acc %",
    "forget_test_accuracy": "For-Acc held-out %",
    "forget_cross_entropy": "CE",
    "forget_entropy": "Ent",
    "forget_kl": "KL",
}
"""The paper's five metrics under the paper's names; For-Acc also on held-out images."""


def in_percent(name: str, value: float | None) -> str:
    """A metric as text: an accuracy in percent, anything else in nats.

    Args:
        name: A key of `COLUMNS`; names that end in `accuracy` are percentages.
        value: A fraction or nats; None where the metric is not available.

    >>> in_percent("retain_accuracy", 0.8475), in_percent("forget_kl", 4.493), in_percent("forget_kl", None)
    ('84.8', '4.49', 'not available')
    """
    if value is None:
        return NOT_AVAILABLE
    return f"{100 * value:.1f}" if name.endswith("accuracy") else f"{value:.2f}"
