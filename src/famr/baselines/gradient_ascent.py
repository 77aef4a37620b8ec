"""Undo learning by its own means: gradient ascent on the forget set."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

from torch import Tensor
from torch.nn import functional as F

from famr.baselines.descent import Descent, Steps
from famr.baselines.work import WeightChange, Work


def ascent_loss(forget_logits: Tensor, labels: Tensor) -> Tensor:
    """−CE on a batch of forget images: going down it goes up the training loss."""
    return -F.cross_entropy(forget_logits, labels)


@dataclass(frozen=True)
class GradientAscent(WeightChange):
    """L = −CE(D_f) [Graves et al. 2021; Thudi et al. 2022]. It has no lower bound: too long or too fast, and nothing
    is left.

    5 epochs of SGD, batches of 256, the learning rate searched between 1e-6 and 1e-3 [Fan et al. 2024, App. C]. No
    weight decay, which would move the model even where the loss is flat. BatchNorm stays as it is.
    """

    steps: Steps = field(default_factory=lambda: Steps(epochs=5, learning_rate=1e-4, weight_decay=0.0))

    name: ClassVar[str] = "gradient ascent"
    paper: ClassVar[str] = "Graves et al. 2021"
    needs_retain: ClassVar[bool] = False

    def trials(self) -> Iterator[Self]:
        """Six learning rates."""
        for steps in self.steps.at((1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2)):
            yield replace(self, steps=steps)

    def change(self, work: Work) -> None:
        """Passes over the forget set."""
        steps = self.steps
        descent = Descent(work, steps, steps.epochs * work.steps_of_forget(steps.batch_size))

        def loss(images: Tensor, labels: Tensor) -> Tensor:
            return ascent_loss(work.logits(images), labels)

        for epoch in range(1, steps.epochs + 1):
            for batch in work.forget(steps.batch_size, epoch, steps.augmentation):
                descent.step(loss, batch.images, batch.labels)
            descent.end_of(f"epoch {epoch}")
