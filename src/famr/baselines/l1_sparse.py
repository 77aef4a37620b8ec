"""Fine-tuning that drives weights to zero: what is sparse remembers less."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from famr.baselines.descent import Descent, Steps
from famr.baselines.work import WeightChange, Work
from famr.errors import RequestError
from famr.models.layers import trainable


def l1_sparse_loss(
    retain_logits: Tensor, labels: Tensor, parameters: Iterable[Tensor], gamma: float | Tensor
) -> Tensor:
    """CE(D_r) + γ·‖θ‖₁."""
    size = torch.stack([parameter.abs().sum() for parameter in parameters]).sum()
    return F.cross_entropy(retain_logits, labels) + gamma * size


@dataclass(frozen=True)
class L1Sparse(WeightChange):
    """L = CE(D_r) + γₜ·‖θ‖₁, γₜ falling linearly from γ to 0 [Jia et al. 2023, ℓ₁-sparse MU].

    γ = 5e-4; 10 epochs of SGD, batches of 256, learning rate 1e-2. BatchNorm takes new statistics, from retained images
    only.
    """

    steps: Steps = field(default_factory=lambda: Steps(epochs=10, learning_rate=1e-2))
    gamma: float = 5e-4

    name: ClassVar[str] = "ℓ₁-sparse"
    paper: ClassVar[str] = "Jia et al. 2023"
    trains_normalisation: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.gamma < 0:
            raise RequestError(f"`gamma` must be at least 0, got {self.gamma!r}.", where="L1Sparse")

    def trials(self) -> Iterator[Self]:
        """Three γ with two learning rates."""
        for gamma in (5e-5, 1e-4, 5e-4):
            for rate in (1e-2, 5e-2):
                yield replace(self, gamma=gamma, steps=replace(self.steps, learning_rate=rate))

    def change(self, work: Work) -> None:
        """Passes over the retained images."""
        steps, parameters = self.steps, trainable(work.model.module)
        count = steps.epochs * work.steps_of_retain(steps.batch_size)
        descent = Descent(work, steps, count)

        def loss(images: Tensor, labels: Tensor, gamma: Tensor) -> Tensor:
            return l1_sparse_loss(work.logits(images), labels, parameters, gamma)

        for epoch in range(1, steps.epochs + 1):
            for batch in work.retain(steps.batch_size, epoch, steps.augmentation):
                gamma = torch.full((), self.gamma * (1 - descent.taken / count), device=work.device)
                descent.step(loss, batch.images, batch.labels, gamma)
            descent.end_of(f"epoch {epoch}")
