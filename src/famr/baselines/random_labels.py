"""Learn something wrong about every forget image: labels drawn at random, trained beside the retained images."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from famr.baselines.descent import RATES, Descent, Steps
from famr.baselines.work import WeightChange, Work
from famr.errors import RequestError


def other_labels(labels: Tensor, allowed: Tensor, uniform: Tensor) -> Tensor:
    """For each image one of the `allowed` classes (sorted), never its own; `uniform` holds numbers from 0 to 1.

    >>> other_labels(torch.tensor([1, 1, 7]), torch.tensor([0, 1, 2]), torch.tensor([0.1, 0.9, 0.9]))
    tensor([0, 2, 2])
    """
    place = torch.searchsorted(allowed, labels).clamp(max=len(allowed) - 1)
    own = allowed[place] == labels
    pick = (uniform * (len(allowed) - own.long())).long()
    return allowed[pick + (own & (pick >= place)).long()]


def drawn_labels(work: Work) -> Tensor:
    """A wrong label for each forget image, drawn once a run, of a class that is not forgotten."""
    gone = set(work.splits.forgotten_classes())
    allowed = torch.tensor([index for index in range(work.classes) if index not in gone], dtype=torch.long)
    if len(allowed) < 2:
        raise RequestError(
            f"Random labels need two classes that stay, this request leaves {len(allowed)}.",
            where=work.splits.request.describe(),
            fix="Use another method.",
        )
    uniform = torch.rand(len(work.forget_shelf), generator=work.draws())
    return other_labels(work.splits.forget.targets, allowed, uniform).to(work.device)


def random_label_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """CE on a batch of both sets, with the drawn labels on the images to forget."""
    return F.cross_entropy(logits, labels)


@dataclass(frozen=True)
class RandomLabels(WeightChange):
    """L = CE on D_r ∪ {(x, y′)}, y′ ≠ y drawn at random for x in D_f [Golatkar et al. 2020; Graves et al. 2021].

    A batch holds both sets in their proportion. 10 epochs of SGD, batches of 256, as in the comparison of
    [Fan et al. 2024, App. C]. A label is drawn once for each image. BatchNorm stays as it is.
    """

    steps: Steps = field(default_factory=lambda: Steps(epochs=10, learning_rate=1e-2))

    name: ClassVar[str] = "random labels"
    paper: ClassVar[str] = "Graves et al. 2021"

    def trials(self) -> Iterator[Self]:
        """Six learning rates."""
        for steps in self.steps.at(RATES):
            yield replace(self, steps=steps)

    def change(self, work: Work) -> None:
        """Passes over both sets."""
        steps, size = self.steps, self.steps.batch_size
        part = work.share_of_forget(size)
        rest = max(1, size - part)
        drawn = drawn_labels(work)
        descent = Descent(work, steps, steps.epochs * work.steps_of_retain(rest))

        def loss(images: Tensor, labels: Tensor) -> Tensor:
            return random_label_loss(work.logits(images), labels)

        for epoch in range(1, steps.epochs + 1):
            for forget, retain in work.both(part, rest, epoch, steps.augmentation):
                labels = torch.cat([drawn[forget.positions.to(work.device)], retain.labels])
                descent.step(loss, torch.cat([forget.images, retain.images]), labels)
            descent.end_of(f"epoch {epoch}")
