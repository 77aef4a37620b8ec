"""Gates on how predictions on the forget set differ from those of retrained models."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import torch
from torch import Tensor

from famr.audit.audit_data import FEWEST_IMAGES
from famr.audit.comparison import ComparedModels
from famr.audit.estimate import Estimate, mean_estimate
from famr.audit.gates.base import Gate, against_references
from famr.audit.measurements import ModelMeasurements
from famr.audit.prediction_bound import Distances, ReferenceSpread
from famr.audit.two_sample import neighbour_order, two_sample_test
from famr.data.loaders import order
from famr.metrics.retraining import js_divergence

TWO_SAMPLE_IMAGES = 500


def mean_js(model: ModelMeasurements, others: Sequence[ModelMeasurements]) -> Tensor:
    """Jensen–Shannon divergence of each forget image, mean over other models, in nats, (images,).

    Args:
        model: The model.
        others: What it is compared with.
    """
    return torch.stack([js_divergence(model.forget.logits, other.forget.logits) for other in others]).mean(dim=0)


def js_excess(model: ModelMeasurements, references: Sequence[ModelMeasurements], models: ComparedModels) -> Estimate:
    """JS to reference models beyond that between them: how much there is to find depends on the class.

    Args:
        model: The model under audit.
        references: What it is compared with.
        models: The whole audit.
    """
    if len(references) < 2:
        return Estimate.not_available("the divergence between retrained models takes two to compare with, or three")
    pairs = [js_divergence(one.forget.logits, other.forget.logits) for one, other in combinations(references, 2)]
    between = torch.stack(pairs).mean(dim=0)
    return mean_estimate(mean_js(model, references) - between, models.seed)


def js_between(among: Sequence[Estimate], models: ComparedModels) -> ReferenceSpread | None:  # noqa: ARG001
    """The mean JS of each pair of reference models; None for two of them, which have one distance.

    Args:
        among: Their estimates against each other.
        models: The whole audit.
    """
    logits = [reference.forget.logits for reference in models.references]
    if len(logits) < 3:
        return None
    distance = [[0.0] * len(logits) for _ in logits]
    for (row, one), (column, other) in combinations(enumerate(logits), 2):
        distance[row][column] = distance[column][row] = float(js_divergence(one, other).mean())
    return Distances(tuple(map(tuple, distance)))


JS_EXCESS = Gate(
    name="js_excess",
    title="predictions on the forget set are farther from retrained models than these are from each other",
    description="Jensen–Shannon divergence to retrained models on the forget set, less that between them, in nats.",
    threshold=0.02,
    measure=against_references(js_excess, js_between),
    kind="likeness",
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
    kind="likeness",
)
