"""Fine-tuning on the retained images: forgetting by catastrophic forgetting alone."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor
from torch.nn import functional as F

from famr.baselines.base import numbers
from famr.baselines.descent import ADAM, Descent, Steps
from famr.baselines.session import BaselineSession, WeightBaseline


def fine_tune_loss(retain_logits: Tensor, labels: Tensor) -> Tensor:
    """CE(D_r) [Golatkar et al. 2020; Warnecke et al. 2023].

    Args:
        retain_logits: Of retained images, (batch, classes).
        labels: Their classes, (batch,).
    """
    return F.cross_entropy(retain_logits, labels)


@dataclass(frozen=True)
class FineTune(WeightBaseline):
    """L = CE(D_r) [Golatkar et al. 2020; Warnecke et al. 2023]. BatchNorm updates its statistics.

    Attributes:
        steps: 10 epochs with η 1e-2, batches of 256, as in the code of [Fan et al. 2024].
    """

    steps: Steps = field(default_factory=lambda: Steps(epochs=10, learning_rate=1e-2, training_mode=True))

    name = "fine-tune"
    paper = "Golatkar et al. 2020"
    published = numbers(schedule="constant")
    tuning = (
        {"learning_rate": 3e-2},
        {"learning_rate": 1e-1},
        {**ADAM, "learning_rate": 1e-4},
        {**ADAM, "learning_rate": 5e-4},
    )

    def change(self, session: BaselineSession) -> None:
        """See `WeightBaseline.change`."""
        steps, size = self.steps, self.steps.batch_size
        descent = Descent(session, steps, total=steps.epochs * session.retain_steps(size))

        def loss(images: Tensor, labels: Tensor) -> Tensor:
            return fine_tune_loss(session.logits(images), labels)

        for epoch in descent.epochs():
            for batch in descent.within(session.retain_batches(size, epoch)):
                descent.step(loss, batch.images, batch.labels)
