"""The gate on slightly changed forget images."""

from __future__ import annotations

from torch import Tensor

from famr.audit.gates.attacked import gap_of_attacked, was_run
from famr.audit.gates.base import Gate
from famr.audit.measurements import ModelMeasurements


def recognised_copies(model: ModelMeasurements) -> Tensor:
    """The share of changed copies of each forget image that is put into its class, (images,).

    Args:
        model: The model.
    """
    assert model.perturbed is not None
    return model.perturbed.share


PERTURBED_GAP = Gate(
    name="perturbed_gap",
    title="slightly changed forget images are recognised more or less often than by retrained models",
    description="|For-Acc − retrained| on forget images with a little noise, moved by a pixel or two, brighter, "
    "darker, or mirrored.",
    threshold=0.05,
    measure=gap_of_attacked("perturbed", recognised_copies),
    applies=was_run("perturbed"),
)
