"""Accuracy of each retained class before and after unlearning, and its nearness to what was forgotten."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from famr.metrics.forgetting import correct
from famr.metrics.predictions import Predictions
from famr.targets.masked import without
from famr.targets.tempered import tempered_target


@dataclass(frozen=True)
class ClassChange:
    """One retained class.

    Attributes:
        target: Its index.
        images: Held-out images of it.
        before: The original's accuracy on them, as a fraction.
        after: The unlearned model's.
        nearness: Mean probability of the class on the forget set, by the original without the forgotten classes.
    """

    target: int
    images: int
    before: float
    after: float
    nearness: float

    @property
    def change(self) -> float:
        """After − before, as a fraction."""
        return self.after - self.before


def nearness(forget_logits: Tensor, forgotten: Tensor) -> Tensor:
    """Mean over forget images of softmax(z) restricted to the retained classes.

    Args:
        forget_logits: The original's, on the forget set, (images, classes).
        forgotten: Indices of the forgotten classes.

    Returns:
        (classes,); 0 for forgotten classes.

    >>> nearness(torch.tensor([[9.0, 1.0, 1.0]]), torch.tensor([0]))
    tensor([0.0000, 0.5000, 0.5000])
    """
    return tempered_target(without(forget_logits, forgotten), 1.0).mean(dim=0)


def class_changes(before: Predictions, after: Predictions, near: Tensor) -> list[ClassChange]:
    """The change of each class among held-out images.

    Args:
        before: The original's predictions.
        after: The unlearned model's, on the same images.
        near: The `nearness` of each class, (classes,).

    Returns:
        The largest loss first; equal ones from the nearest class on.
    """
    hits_before, hits_after = (correct(predictions.logits, predictions.targets) for predictions in (before, after))
    changes = []
    for target in sorted(set(before.targets.tolist())):
        of_class = before.targets == target
        accuracy_before, accuracy_after = (float(hits[of_class].mean()) for hits in (hits_before, hits_after))
        changes.append(ClassChange(target, int(of_class.sum()), accuracy_before, accuracy_after, float(near[target])))
    return sorted(changes, key=lambda change: (round(change.change, 6), -change.nearness))


def loss_of_nearest(changes: list[ClassChange], count: int = 5) -> float:
    """The mean change of the classes nearest to what was forgotten.

    Args:
        changes: Of all classes.
        count: How many of the nearest.
    """
    nearest = sorted(changes, key=lambda change: -change.nearness)[:count]
    return float(torch.tensor([change.change for change in nearest], dtype=torch.float64).mean())
