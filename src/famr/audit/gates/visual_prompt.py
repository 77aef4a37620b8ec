"""The gate on recovery by a visual prompt."""

from __future__ import annotations

from torch import Tensor

from famr.audit.gates.attacked import gap_of_attacked, was_run
from famr.audit.gates.base import Gate, of_shares
from famr.audit.measurements import PROMPT, ModelMeasurements


def recovered_by_prompt(model: ModelMeasurements) -> Tensor:
    """1 where a forgotten image is put into its class under the prompt, (images,).

    Args:
        model: The model.
    """
    assert model.prompt is not None
    return model.prompt.under.forget.double()


VISUAL_PROMPT_GAP = Gate(
    name="visual_prompt_gap",
    title="a visual prompt recovers the class to another extent than in retrained models",
    description=f"|For-Acc − retrained| under one pattern, trained in {PROMPT.steps} steps and added to every image, "
    "on forget images that it did not learn from.",
    threshold=0.1,
    measure=gap_of_attacked("prompt", recovered_by_prompt, of_shares(recovered_by_prompt)),
    kind="depth",
    applies=was_run("prompt"),
)
