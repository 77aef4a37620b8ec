"""ℓ₁-sparse unlearning: fine-tuning with a penalty that drives weights to zero."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from famr.baselines.base import numbers
from famr.baselines.descent import ADAM, Descent, Steps
from famr.baselines.session import BaselineSession, WeightBaseline
from famr.errors import RequestError
from famr.models.layers import trainable


def l1_sparse_loss(
    retain_logits: Tensor, labels: Tensor, parameters: Iterable[Tensor], gamma: float | Tensor
) -> Tensor:
    """CE(D_r) + γ·‖θ‖₁ [Jia et al. 2023].

    Args:
        retain_logits: Of retained images, (batch, classes).
        labels: Their classes.
        parameters: θ.
        gamma: γ.
    """
    norm = torch.stack([parameter.abs().sum() for parameter in parameters]).sum()
    return F.cross_entropy(retain_logits, labels) + gamma * norm


@dataclass(frozen=True)
class L1Sparse(WeightBaseline):
    """L = CE(D_r) + γₜ·‖θ‖₁, γₜ falling linearly from γ to 0 [Jia et al. 2023]. BatchNorm updates its statistics.

    Attributes:
        steps: 10 epochs of SGD with η 1e-2, batches of 256, as in the authors' code.
        gamma: γ, as in the paper.
    """

    steps: Steps = field(default_factory=lambda: Steps(epochs=10, learning_rate=1e-2, training_mode=True))
    gamma: float = 5e-4

    name = "ℓ₁-sparse"
    paper = "Jia et al. 2023"
    published = numbers(schedule="constant")
    tuning = (
        {"gamma": 1e-4},
        {"gamma": 5e-5, "learning_rate": 3e-2},
        {"gamma": 5e-5, **ADAM, "learning_rate": 1e-4},
        {"gamma": 1e-5, **ADAM, "learning_rate": 5e-4},
    )

    def __post_init__(self) -> None:
        if self.gamma < 0:
            raise RequestError(f"`gamma` must be at least 0, got {self.gamma!r}.", where="L1Sparse")

    def change(self, session: BaselineSession) -> None:
        """See `WeightBaseline.change`."""
        steps, size, parameters = self.steps, self.steps.batch_size, trainable(session.model.module)
        descent = Descent(session, steps, total=steps.epochs * session.retain_steps(size))

        def loss(images: Tensor, labels: Tensor, gamma: Tensor) -> Tensor:
            return l1_sparse_loss(session.logits(images), labels, parameters, gamma)

        for epoch in descent.epochs():
            for batch in descent.within(session.retain_batches(size, epoch)):
                gamma = torch.full((), self.gamma * (1 - descent.taken / descent.total), device=session.device)
                descent.step(loss, batch.images, batch.labels, gamma)
