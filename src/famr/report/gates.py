"""Names of the audit's gates for readers who do not read code."""

from __future__ import annotations

GATE_TITLES = {
    "forget_accuracy_gap": "forget accuracy, gap to retrained",
    "held_out_forget_accuracy_gap": "held-out forget accuracy, gap to retrained",
    "retain_accuracy_gap": "retain accuracy, gap to retrained",
    "forgotten_rank_gap": "rank of the forgotten class, gap to retrained",
    "mia_efficacy_gap": "membership inference (MIA-efficacy), gap to retrained",
    "average_gap": "mean of the gaps (Avg. Gap)",
    "js_to_retrained": "Jensen–Shannon divergence to retrained",
    "tell_tale_auc": "telling the model from retrained ones by its predictions",
    "rmia_auc": "membership inference attack RMIA",
    "u_lira_accuracy": "membership inference attack U-LiRA",
    "best_bias_excess": "recovery by a shifted bias",
    "probe_excess": "recovery by a linear probe of the features",
    "neighbours_excess": "recovery by nearest neighbours in feature space",
    "style_excess": "recovery of the style from the features",
    "relearning_saved": "relearning speed",
    "forget_accuracy": "forget accuracy",
    "original_head_back": "recovery by the original head",
    "int8_comes_back": "recovery by rounding to int8",
    "half_comes_back": "recovery by half precision",
    "onnx_comes_back": "recovery by export to ONNX",
}


def gate_title(gate: str) -> str:
    """The title of a gate; a gate without one is called by its own name.

    >>> gate_title("relearning_saved"), gate_title("my_own_gate")
    ('relearning speed', 'my own gate')

    Args:
        gate: Name of the gate in the audit's record.
    """
    return GATE_TITLES.get(gate, gate.replace("_", " "))
