"""Measures with one value for each image of a model: what gaps to reference models are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from famr.audit.measurements import ModelMeasurements
from famr.metrics.forgetting import correct
from famr.metrics.predictions import Predictions

PerImage = Callable[[ModelMeasurements], Tensor]
"""A model → one value for each of its images, (images,), or for each draw of an attack and image, (draws, images)."""


def hits_on(name: str) -> PerImage:
    """1 where the model is right, 0 elsewhere.

    Args:
        name: Of the set: forget, retain, test or forget_test.
    """

    def hits(model: ModelMeasurements) -> Tensor:
        predictions: Predictions = getattr(model, name)
        return correct(predictions.logits, predictions.targets).double()

    return hits


def share_above_true(model: ModelMeasurements) -> Tensor:
    """The share of the remaining classes whose logit is above that of the true class, on the forget set.

    A model that never predicts a class may still rank it second; one that never saw it ranks it among the last.

    Args:
        model: The model.
    """
    logits, targets = model.forget.logits, model.forget.targets
    above = (logits > logits.gather(-1, targets[:, None])).sum(dim=-1)
    return above.double() / (logits.shape[-1] - 1)


def non_member(model: ModelMeasurements) -> Tensor:
    """1 where the membership attack calls a forget image a non-member, (draws, images).

    Args:
        model: The model.
    """
    return model.non_members


AVERAGE_GAP_MEASURES: dict[str, PerImage] = {
    "forget": hits_on("forget"),
    "retain": hits_on("retain"),
    "test": hits_on("test"),
    "mia": non_member,
}
"""The four measures that Avg. Gap is the mean of [Fan et al. 2024]."""


def average_gap_means(models: Sequence[ModelMeasurements]) -> dict[str, float]:
    """The four measures of Avg. Gap, as means over images and models.

    Args:
        models: One or more.
    """
    return {
        name: sum(float(values(model).mean()) for model in models) / len(models)
        for name, values in AVERAGE_GAP_MEASURES.items()
    }


def difference(model: ModelMeasurements, references: Sequence[ModelMeasurements], values: PerImage) -> Tensor:
    """A model's value minus the mean of the reference models', (images,).

    Args:
        model: The model under audit.
        references: At least one.
        values: The measure.
    """
    return values(model) - torch.stack([values(reference) for reference in references]).mean(dim=0)
