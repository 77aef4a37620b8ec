"""The audit's gates in words for people who do not read code."""

from __future__ import annotations

GATES = {
    "forget_accuracy_gap": "accuracy on what was forgotten, beside retrained models",
    "held_out_forget_accuracy_gap": "accuracy on held-out images of what was forgotten, beside retrained models",
    "retain_accuracy_gap": "accuracy on what stays, beside retrained models",
    "forgotten_rank_gap": "how likely it still finds what was forgotten, beside retrained models",
    "mia_efficacy_gap": "a membership attack, beside retrained models",
    "average_gap": "the mean of these gaps",
    "js_to_retrained": "distance of its answers to those of retrained models",
    "tell_tale_auc": "telling it from retrained models by its answers",
    "rmia_auc": "the membership attack RMIA",
    "u_lira_accuracy": "the membership attack U-LiRA",
    "best_bias_excess": "a shifted bias brings it back",
    "probe_excess": "a linear probe reads it off the features",
    "neighbours_excess": "nearest neighbours read it off the features",
    "style_excess": "the style can be read off the features",
    "relearning_saved": "it is learnt again sooner",
    "forget_accuracy": "accuracy on what was forgotten",
    "original_head_back": "the original head brings it back",
    "int8_comes_back": "rounding to 8 bits brings it back",
    "half_comes_back": "half precision brings it back",
    "onnx_comes_back": "export to ONNX brings it back",
}


def in_words(gate: str) -> str:
    """What a gate looks at; its own name where nobody gave it words.

    >>> in_words("relearning_saved"), in_words("of_my_own")
    ('it is learnt again sooner', 'of my own')
    """
    return GATES.get(gate, gate.replace("_", " "))
