"""Made-up predictions with known answers: what an audit measures, without any model."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from famr.audit.comparison import ComparedModels
from famr.audit.estimate import Estimate
from famr.audit.measurements import ModelMeasurements
from famr.data.splits import Splits
from famr.metrics.predictions import Predictions


def random_logits(rows: int, classes: int = 5, seed: int = 0, scale: float = 2.0) -> Tensor:
    return scale * torch.randn(rows, classes, generator=torch.Generator().manual_seed(seed))


def right_for(share: float, targets: Tensor, classes: int = 5) -> Predictions:
    """Predictions that are right for the first images of each class, up to this share of them, and else for the next
    class."""
    right = torch.zeros(len(targets), dtype=torch.bool)
    for label in targets.unique():
        members = (targets == label).nonzero()[:, 0]
        right[members[: round(share * len(members))]] = True
    predicted = torch.where(right, targets, (targets + 1) % classes)
    return Predictions(6.0 * F.one_hot(predicted, classes), targets)


def measured(
    forget: Predictions, test: Predictions, *, forget_test: Predictions | None = None, retain: Predictions | None = None
) -> ModelMeasurements:
    """A model of which only predictions are known, and on which the membership attack works."""
    works = Estimate(0.7, 0.6, 0.8)
    return ModelMeasurements(forget, retain or test, test, forget_test, torch.ones(len(forget.targets)), works)


def compared(
    splits: Splits, audited: dict[str, ModelMeasurements], references: list[ModelMeasurements]
) -> ComparedModels:
    """These models side by side; one reference given several times is as many models."""
    return ComparedModels(splits, audited, [replace(each) for each in references], seed=0)
