"""NegGrad+: descent on the retained loss and ascent on the forget loss in one step."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from famr.baselines.base import numbers
from famr.baselines.descent import ADAM, Descent, Steps
from famr.baselines.session import BaselineSession, WeightBaseline
from famr.errors import RequestError

FORGET_RATIO = 4
"""Retained images for each forget image of a step. The mean over a batch is unbiased whatever its size."""


def neg_grad_plus_loss(
    retain_logits: Tensor, retain_labels: Tensor, forget_logits: Tensor, forget_labels: Tensor, alpha: float
) -> Tensor:
    """α·CE(D_r) − (1 − α)·CE(D_f) [Kurmanji et al. 2023].

    Args:
        retain_logits: Of retained images, (retain batch, classes).
        retain_labels: Their classes.
        forget_logits: Of forget images, (forget batch, classes).
        forget_labels: Their classes.
        alpha: α.
    """
    retain_loss = F.cross_entropy(retain_logits, retain_labels)
    return alpha * retain_loss - (1 - alpha) * F.cross_entropy(forget_logits, forget_labels)


@dataclass(frozen=True)
class NegGradPlus(WeightBaseline):
    """L = α·CE(D_r) − (1 − α)·CE(D_f) [Kurmanji et al. 2023]; with α = 1 it is fine-tuning.

    BatchNorm keeps its statistics.

    Attributes:
        steps: Those of fine-tuning, with half the epochs; our choice.
        alpha: α. The paper tunes it per task; 0.95 is the value of its small-scale runs.
    """

    steps: Steps = field(default_factory=lambda: Steps(epochs=5, learning_rate=1e-2))
    alpha: float = 0.95

    name = "NegGrad+"
    paper = "Kurmanji et al. 2023"
    published = numbers(schedule="constant", training_mode=True)
    tuning = (
        {"alpha": 0.99},
        {"alpha": 0.999},
        {"alpha": 0.99, **ADAM, "learning_rate": 1e-4},
        {"alpha": 0.999, **ADAM, "learning_rate": 1e-4},
    )

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise RequestError(f"`alpha` must be from 0 to 1, got {self.alpha!r}.", where="NegGradPlus")

    def change(self, session: BaselineSession) -> None:
        """See `WeightBaseline.change`."""
        steps, size = self.steps, self.steps.batch_size
        forget_size = max(1, size // FORGET_RATIO)
        descent = Descent(session, steps, total=steps.epochs * session.retain_steps(size))

        def loss(retain: Tensor, retain_labels: Tensor, forget: Tensor, forget_labels: Tensor) -> Tensor:
            logits = session.logits(torch.cat([retain, forget]))  # one pass is faster than two on a GPU
            retain_logits, forget_logits = torch.split(logits, [len(retain), len(forget)])
            return neg_grad_plus_loss(retain_logits, retain_labels, forget_logits, forget_labels, self.alpha)

        for epoch in descent.epochs():
            for forget, retain in descent.within(session.paired_batches(forget_size, size, epoch)):
                descent.step(loss, retain.images, retain.labels, forget.images, forget.labels)
