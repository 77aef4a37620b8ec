"""The gates of an audit. To add one, write it in a file of this package and list it in `GATES`."""

from __future__ import annotations

from famr.audit.gates.accuracy import (
    AVERAGE_GAP,
    FORGET_ACCURACY,
    FORGET_ACCURACY_GAP,
    FORGOTTEN_RANK_GAP,
    HELD_OUT_FORGET_ACCURACY_GAP,
    RETAIN_ACCURACY_GAP,
)
from famr.audit.gates.base import Gate
from famr.audit.gates.conversions import HALF_COMES_BACK, INT8_COMES_BACK, ONNX_COMES_BACK
from famr.audit.gates.membership import MIA_EFFICACY_GAP, U_LIRA_ACCURACY
from famr.audit.gates.perturbed import PERTURBED_GAP
from famr.audit.gates.predictions import JS_EXCESS, TWO_SAMPLE_AUC
from famr.audit.gates.recovery import BEST_BIAS_GAP, NEIGHBOURS_GAP, ORIGINAL_HEAD_GAP, PROBE_GAP
from famr.audit.gates.relearning import RELEARNING_GAP
from famr.audit.gates.retained_tuning import RETAINED_TUNING_PROBABILITY_GAP, RETAINED_TUNING_RANK_GAP
from famr.audit.gates.rmia import RMIA_AUC
from famr.audit.gates.style import STYLE_GAP
from famr.audit.gates.visual_prompt import VISUAL_PROMPT_GAP

GATES: dict[str, Gate] = {
    gate.name: gate
    for gate in (
        FORGET_ACCURACY_GAP,
        HELD_OUT_FORGET_ACCURACY_GAP,
        RETAIN_ACCURACY_GAP,
        MIA_EFFICACY_GAP,
        AVERAGE_GAP,
        JS_EXCESS,
        TWO_SAMPLE_AUC,
        RMIA_AUC,
        FORGOTTEN_RANK_GAP,
        FORGET_ACCURACY,
        BEST_BIAS_GAP,
        PROBE_GAP,
        NEIGHBOURS_GAP,
        ORIGINAL_HEAD_GAP,
        STYLE_GAP,
        RELEARNING_GAP,
        VISUAL_PROMPT_GAP,
        RETAINED_TUNING_PROBABILITY_GAP,
        RETAINED_TUNING_RANK_GAP,
        PERTURBED_GAP,
        INT8_COMES_BACK,
        HALF_COMES_BACK,
        ONNX_COMES_BACK,
        U_LIRA_ACCURACY,
    )
}
"""Every gate by its name, in the order of audit.json."""


def gate_title(name: str) -> str:
    """The title of a gate for readers of a report; a gate of another version is called by its own name.

    Args:
        name: In audit.json.

    >>> gate_title("a_gate_of_your_own")
    'a gate of your own'
    """
    return GATES[name].title if name in GATES else name.replace("_", " ")
