"""Gradient ascent on the training loss of the forget set."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor
from torch.nn import functional as F

from famr.baselines.base import numbers
from famr.baselines.descent import ADAM, Descent, Steps
from famr.baselines.session import BaselineSession, WeightBaseline


def ascent_loss(forget_logits: Tensor, labels: Tensor) -> Tensor:
    """−CE(D_f) [Graves et al. 2021; Thudi et al. 2022].

    Args:
        forget_logits: Of forget images, (batch, classes).
        labels: Their classes, (batch,).
    """
    return -F.cross_entropy(forget_logits, labels)


@dataclass(frozen=True)
class GradientAscent(WeightBaseline):
    """L = −CE(D_f) [Graves et al. 2021; Thudi et al. 2022].

    The loss has no lower bound: too many or too large steps destroy the model. BatchNorm keeps its statistics.

    Attributes:
        steps: 5 epochs with η 1e-4, batches of 256, as in the code of [Fan et al. 2024]. No weight decay, which would
            change the model even where the gradient is zero.
    """

    steps: Steps = field(default_factory=lambda: Steps(epochs=5, learning_rate=1e-4, weight_decay=0.0))

    name = "gradient ascent"
    paper = "Graves et al. 2021"
    needs_retain = False
    published = numbers(schedule="constant", weight_decay=5e-4, training_mode=True)
    tuning = (
        {"learning_rate": 1e-3},
        {"learning_rate": 3e-3},
        {**ADAM, "learning_rate": 1e-5},
        {**ADAM, "learning_rate": 5e-5},
    )

    def change(self, session: BaselineSession) -> None:
        """See `WeightBaseline.change`."""
        steps, size = self.steps, self.steps.batch_size
        descent = Descent(session, steps, total=steps.epochs * session.forget_steps(size))

        def loss(images: Tensor, labels: Tensor) -> Tensor:
            return ascent_loss(session.logits(images), labels)

        for epoch in descent.epochs():
            for batch in descent.within(session.forget_batches(size, epoch)):
                descent.step(loss, batch.images, batch.labels)
