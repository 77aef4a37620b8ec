"""Gates on how predictions on the forget set differ from those of retrained models."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from famr.audit.audit_data import FEWEST_IMAGES
from famr.audit.comparison import ComparedModels
from famr.audit.estimate import Estimate, mean_estimate
from famr.audit.gates.base import Gate, against_references
from famr.audit.measurements import ModelMeasurements
from famr.audit.two_sample import neighbour_order, two_sample_test
from famr.data.loaders import order
from famr.metrics.retraining import js_divergence

TWO_SAMPLE_IMAGES = 500


def js_estimate(model: ModelMeasurements, references: Sequence[ModelMeasurements], models: ComparedModels) -> Estimate:
    """Jensen–Shannon divergence on the forget set, mean over reference models and images, in nats.

    Args:
        model: The model under audit.
        references: What it is compared with.
        models: The whole audit.
    """
    divergences = [js_divergence(model.forget.logits, reference.forget.logits) for reference in references]
    return mean_estimate(torch.stack(divergences).mean(dim=0), models.seed)


JS_TO_RETRAINED = Gate(
    name="js_to_retrained",
    title="predictions on the forget set differ from those of retrained models",
    description="Jensen–Shannon divergence to retrained on the forget set, in nats.",
    threshold=0.25,
    measure=against_references(js_estimate),
)


def two_sample_estimate(
    model: ModelMeasurements, references: Sequence[ModelMeasurements], models: ComparedModels
) -> Estimate:
    """AUC of the two-sample test on up to `TWO_SAMPLE_IMAGES` forget images.

    Args:
        model: The model under audit.
        references: What it is compared with.
        models: The whole audit.
    """
    drawn = order(len(model.forget.targets), models.seed)[:TWO_SAMPLE_IMAGES]
    if len(drawn) < FEWEST_IMAGES:
        return Estimate.not_available("too few forget images")
    retrained = [reference.forget.logits[drawn] for reference in references]
    ranking = (models.original or models.unlearned).forget  # says which classes are near, for all attacks alike
    nearest = neighbour_order(ranking.logits, ranking.targets)[drawn]
    test = two_sample_test(model.forget.logits[drawn], retrained, nearest, models.seed)
    return Estimate(test.auc, test.low, test.high)


TWO_SAMPLE_AUC = Gate(
    name="tell_tale_auc",
    title="predictions on the forget set give the unlearned model away",
    description="AUC of telling the model from retrained ones by whole predictions on the forget set.",
    threshold=0.65,
    measure=against_references(two_sample_estimate),
)
