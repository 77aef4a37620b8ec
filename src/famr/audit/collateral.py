"""Which retained classes paid for the forgetting, and how near they are to what was forgotten."""

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
    """One retained class: its held-out accuracy before and after, and its nearness to what was forgotten."""

    target: int
    images: int
    before: float
    after: float
    nearness: float
    """The share of the original's answers on the forget set that goes to this class once the forgotten are left out."""

    @property
    def change(self) -> float:
        """After − before, as a fraction."""
        return self.after - self.before


def nearness(forget_logits: Tensor, forgotten: Tensor) -> Tensor:
    """How much of the original's answers on the forget set goes to each class that stays, (classes,).

    >>> nearness(torch.tensor([[9.0, 1.0, 1.0]]), torch.tensor([0]))
    tensor([0.0000, 0.5000, 0.5000])
    """
    return tempered_target(without(forget_logits, forgotten), 1.0).mean(dim=0)


def collateral(before: Predictions, after: Predictions, near: Tensor) -> list[ClassChange]:
    """Every class among the held-out images, the one that lost most first; equals in the order of nearness."""
    hits = {name: correct(said.logits, said.targets) for name, said in (("before", before), ("after", after))}
    found = []
    for target in sorted(set(before.targets.tolist())):
        here = before.targets == target
        means = {name: float(hit[here].mean()) for name, hit in hits.items()}
        found.append(ClassChange(target, int(here.sum()), means["before"], means["after"], float(near[target])))
    return sorted(found, key=lambda change: (round(change.change, 6), -change.nearness))


def loss_of_nearest(changes: list[ClassChange], count: int = 5) -> float:
    """The mean change of the classes nearest to what was forgotten."""
    nearest = sorted(changes, key=lambda change: -change.nearness)[:count]
    return float(torch.tensor([change.change for change in nearest], dtype=torch.float64).mean())
