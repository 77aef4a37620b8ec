"""Gates on what an attacker reads off features and head beyond a retrained model."""

from __future__ import annotations

from torch import Tensor

from famr.audit.comparison import ComparedModels
from famr.audit.estimate import Estimates, mean_estimate
from famr.audit.gates.base import Gate, excess_over_references
from famr.audit.measurements import ModelMeasurements
from famr.audit.per_image import PerImage


def has_recovery(models: ComparedModels) -> bool:
    """For gates of class recovery.

    Args:
        models: Of the audit.
    """
    return models.unlearned.recovery is not None


def recovered_by(attack: str) -> PerImage:
    """Hits of an attack on held-out forgotten images.

    Args:
        attack: Its name in `ClassRecovery.hits`.
    """

    def hits(model: ModelMeasurements) -> Tensor:
        assert model.recovery is not None
        return model.recovery.hits[attack].forget.double()

    return hits


BEST_BIAS_EXCESS = Gate(
    name="best_bias_excess",
    title="a shifted bias recovers the class",
    description="The best bias for the forgotten classes, at 1 % of retained accuracy: held-out forget accuracy − "
    "retrained.",
    threshold=0.1,
    measure=excess_over_references(recovered_by("best_bias")),
    applies=has_recovery,
)

PROBE_EXCESS = Gate(
    name="probe_excess",
    title="a linear probe on the features recovers the class",
    description="A linear probe with five images a class: held-out forget accuracy − retrained.",
    threshold=0.1,
    measure=excess_over_references(recovered_by("probe")),
    applies=has_recovery,
)

NEIGHBOURS_EXCESS = Gate(
    name="neighbours_excess",
    title="nearest neighbours in feature space recover the class",
    description="Nearest neighbours among five images a class: held-out forget accuracy − retrained.",
    threshold=0.1,
    measure=excess_over_references(recovered_by("neighbours")),
    applies=has_recovery,
)


def transplanted_accuracies(models: ComparedModels) -> Estimates:
    """Held-out forget accuracy of each audited model with the original's head.

    Args:
        models: The whole audit.
    """
    hits = {
        name: model.recovery.hits["original_head"].forget.double()
        for name, model in models.audited.items()
        if model.recovery is not None and "original_head" in model.recovery.hits
    }
    return Estimates({name: mean_estimate(of_model, models.seed) for name, of_model in hits.items()})


ORIGINAL_HEAD_BACK = Gate(
    name="original_head_back",
    title="the original head recovers the class",
    description="Held-out forget accuracy with the original's head in place of its own.",
    threshold=0.1,
    measure=transplanted_accuracies,
    applies=has_recovery,
    needs_retrained=False,
)
