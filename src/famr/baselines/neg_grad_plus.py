"""Down on what is retained and up on what is forgotten, in one step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

from torch import Tensor
from torch.nn import functional as F

from famr.baselines.descent import Descent, Steps
from famr.baselines.work import WeightChange, Work
from famr.errors import RequestError

FORGET_PART = 4
"""The forget half of a step has a quarter of the images: its mean is an unbiased estimate whatever its size."""


def neg_grad_plus_loss(
    retain_logits: Tensor, retain_labels: Tensor, forget_logits: Tensor, forget_labels: Tensor, alpha: float
) -> Tensor:
    """α·CE(D_r) − (1 − α)·CE(D_f)."""
    keep = F.cross_entropy(retain_logits, retain_labels)
    return alpha * keep - (1 - alpha) * F.cross_entropy(forget_logits, forget_labels)


@dataclass(frozen=True)
class NegGradPlus(WeightChange):
    """L = α·CE(D_r) − (1 − α)·CE(D_f) [Kurmanji et al. 2023, NegGrad+]; at α = 1 it is fine-tuning.

    The paper tunes α per task; 0.95 is the value known from its small-scale runs. Learning rate and epochs are those
    of fine-tuning, halved in number. BatchNorm stays as it is.
    """

    steps: Steps = field(default_factory=lambda: Steps(epochs=5, learning_rate=1e-2))
    alpha: float = 0.95

    name: ClassVar[str] = "NegGrad+"
    paper: ClassVar[str] = "Kurmanji et al. 2023"

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise RequestError(f"`alpha` must be from 0 to 1, got {self.alpha!r}.", where="NegGradPlus")

    def trials(self) -> Iterator[Self]:
        """Three learning rates with two α."""
        for alpha in (0.95, 0.99):
            for rate in (1e-3, 1e-2, 3e-2):
                yield replace(self, alpha=alpha, steps=replace(self.steps, learning_rate=rate))

    def change(self, work: Work) -> None:
        """Passes over the retained images, each batch with some of the forget set."""
        steps = self.steps
        part = max(1, steps.batch_size // FORGET_PART)
        count = steps.epochs * work.steps_of_retain(steps.batch_size)
        descent = Descent(work, steps, count)

        def loss(kept: Tensor, labels: Tensor, gone: Tensor, wrong: Tensor) -> Tensor:
            of_kept, of_gone = work.logits_of_both(kept, gone)
            return neg_grad_plus_loss(of_kept, labels, of_gone, wrong, self.alpha)

        for epoch in range(1, steps.epochs + 1):
            for forget, retain in work.both(part, steps.batch_size, epoch, steps.augmentation):
                descent.step(loss, *retain[:2], *forget[:2])
            descent.end_of(f"epoch {epoch}")
