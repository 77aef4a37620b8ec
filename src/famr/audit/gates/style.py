"""The gate on a forgotten style."""

from __future__ import annotations

from torch import Tensor

from famr.audit.gates.base import Gate, gap_to_references
from famr.audit.measurements import ModelMeasurements


def style_recognised(model: ModelMeasurements) -> Tensor:
    """One value for each held-out image, whose mean is the balanced accuracy of the style probe.

    Args:
        model: The model.
    """
    assert model.style is not None
    return model.style.balanced()


STYLE_GAP = Gate(
    name="style_gap",
    title="a probe on the features recognises the style to another degree than in retrained models",
    description="A probe on Gram features that names the style: |balanced accuracy − that of models that never saw the "
    "style|.",
    threshold=0.1,
    measure=gap_to_references(style_recognised),
    kind="depth",
    applies=lambda models: models.unlearned.style is not None,
)
