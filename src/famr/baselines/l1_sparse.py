"""ℓ₁-sparse unlearning: fine-tuning with a penalty that drives weights to zero."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from famr.baselines.base import grid
from famr.baselines.descent import Descent, Steps
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
        steps: 10 epochs of SGD, batches of 256, as in the paper; η 1e-2 is our choice.
        gamma: γ, as in the paper.
    """

    steps: Steps = field(default_factory=lambda: Steps(epochs=10, learning_rate=1e-2))
    gamma: float = 5e-4

    name = "ℓ₁-sparse"
    paper = "Jia et al. 2023"
    trains_normalisation = True
    tuning = grid(gamma=(5e-5, 1e-4, 5e-4), learning_rate=(1e-2, 5e-2))

    def __post_init__(self) -> None:
        if self.gamma < 0:
            raise RequestError(f"`gamma` must be at least 0, got {self.gamma!r}.", where="L1Sparse")

    def change(self, session: BaselineSession) -> None:
        """See `WeightBaseline.change`."""
        steps, size, parameters = self.steps, self.steps.batch_size, trainable(session.model.module)
        total = steps.epochs * session.retain_steps(size)
        descent = Descent(session, steps, total)

        def loss(images: Tensor, labels: Tensor, gamma: Tensor) -> Tensor:
            return l1_sparse_loss(session.logits(images), labels, parameters, gamma)

        for epoch in descent.epochs():
            for batch in session.retain_batches(size, epoch):
                gamma = torch.full((), self.gamma * (1 - descent.taken / total), device=session.device)
                descent.step(loss, batch.images, batch.labels, gamma)
