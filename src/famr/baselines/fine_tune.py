"""Fine-tuning on what is retained, in the hope that the rest fades: catastrophic forgetting put to use."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

from torch import Tensor
from torch.nn import functional as F

from famr.baselines.descent import RATES, Descent, Steps
from famr.baselines.work import WeightChange, Work


def fine_tune_loss(retain_logits: Tensor, labels: Tensor) -> Tensor:
    """CE on a batch of retained images."""
    return F.cross_entropy(retain_logits, labels)


@dataclass(frozen=True)
class FineTune(WeightChange):
    """L = CE(D_r) [Golatkar et al. 2020; Warnecke et al. 2023].

    10 epochs of SGD, batches of 256, the learning rate searched between 1e-3 and 1e-1 [Fan et al. 2024, App. C];
    1e-2 is the middle of it. BatchNorm takes new statistics, from retained images only.
    """

    steps: Steps = field(default_factory=lambda: Steps(epochs=10, learning_rate=1e-2))

    name: ClassVar[str] = "fine-tune"
    paper: ClassVar[str] = "Golatkar et al. 2020"
    trains_normalisation: ClassVar[bool] = True

    def trials(self) -> Iterator[Self]:
        """Six learning rates."""
        for steps in self.steps.at(RATES):
            yield replace(self, steps=steps)

    def change(self, work: Work) -> None:
        """Passes over the retained images."""
        steps = self.steps
        descent = Descent(work, steps, steps.epochs * work.steps_of_retain(steps.batch_size))

        def loss(images: Tensor, labels: Tensor) -> Tensor:
            return fine_tune_loss(work.logits(images), labels)

        for epoch in range(1, steps.epochs + 1):
            for batch in work.retain(steps.batch_size, epoch, steps.augmentation):
                descent.step(loss, batch.images, batch.labels)
            descent.end_of(f"epoch {epoch}")
