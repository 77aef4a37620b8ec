"""The gate on relearn time."""

from __future__ import annotations

from collections.abc import Sequence

from famr.audit.comparison import ComparedModels
from famr.audit.estimate import Estimate
from famr.audit.gates.base import Gate, against_references
from famr.audit.measurements import RELEARNING, ModelMeasurements
from famr.audit.relearning import steps_saved


def steps_saved_estimate(
    model: ModelMeasurements,
    references: Sequence[ModelMeasurements],
    models: ComparedModels,  # noqa: ARG001
) -> Estimate:
    """Mean of `steps_saved` over reference models and draws of images; the interval is its range.

    Args:
        model: The model under audit.
        references: What it is compared with.
        models: The whole audit.
    """
    reference_runs = [reference.relearning for reference in references if reference.relearning is not None]
    if model.relearning is None or not reference_runs:
        return Estimate.not_available("relearning takes the original, whose accuracy is the aim")
    saved = steps_saved(model.relearning, reference_runs)
    return Estimate(sum(saved) / len(saved), min(saved), max(saved))


RELEARNING_SAVED = Gate(
    name="relearning_saved",
    title="the forgotten data is relearned sooner than by retrained models",
    description="Relearning: the share of a retrained model's steps that the model saves on the way back to 95 % of "
    f"the original's accuracy, at most {RELEARNING.steps} steps.",
    threshold=0.1,
    measure=against_references(steps_saved_estimate),
    kind="depth",
    applies=lambda models: models.unlearned.conversions is not None,  # in every audit that is not quick
)
