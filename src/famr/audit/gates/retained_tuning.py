"""Gates on what comes back when a model is fine-tuned on retained images alone."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from famr.audit.gates.attacked import gap_of_attacked, was_run
from famr.audit.gates.base import Gate
from famr.audit.measurements import ModelMeasurements
from famr.audit.per_image import PerImage, share_above_true
from famr.audit.rmia import true_log_probability


def true_probability(model: ModelMeasurements) -> Tensor:
    """Probability of the true class of each forget image.

    Args:
        model: The model.
    """
    return true_log_probability(model.forget.logits, model.forget.targets).exp()


def after_retained_tuning(values: PerImage) -> PerImage:
    """A measure on the forget set, taken after the fine-tuning.

    Args:
        values: The measure.
    """

    def tuned_values(model: ModelMeasurements) -> Tensor:
        assert model.retained_tuning is not None
        return values(replace(model, forget=model.retained_tuning.forget))

    return tuned_values


RETAINED_TUNING_PROBABILITY_GAP = Gate(
    name="retained_tuning_probability_gap",
    title="fine-tuning on retained images brings back what retrained models do not have",
    description="|p of the true class − retrained| on the forget set, after fine-tuning on retained images alone.",
    threshold=0.05,
    measure=gap_of_attacked("retained_tuning", after_retained_tuning(true_probability)),
    kind="depth",
    applies=was_run("retained_tuning"),
)

RETAINED_TUNING_RANK_GAP = Gate(
    name="retained_tuning_rank_gap",
    title="after fine-tuning on retained images the forgotten class has another rank than in retrained models",
    description="|share of the remaining classes that are likelier than the forgotten one − retrained| on the forget "
    "set, after fine-tuning on retained images alone.",
    threshold=0.2,
    measure=gap_of_attacked("retained_tuning", after_retained_tuning(share_above_true)),
    kind="depth",
    applies=lambda models: models.splits.forgets_classes() and was_run("retained_tuning")(models),
)
