"""SCRUB: a student that obeys its teacher on what is retained and disobeys on what is forgotten."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from famr.baselines.descent import Descent, Steps
from famr.baselines.work import WeightChange, Work
from famr.errors import RequestError
from famr.losses.objective import target_kl
from famr.models import Classifier


def distance(teacher_logits: Tensor, student_logits: Tensor) -> Tensor:
    """d(x) = KL(p_teacher ‖ p_student) of each image."""
    return target_kl(student_logits, torch.softmax(teacher_logits, dim=-1))


def max_step_loss(teacher_logits: Tensor, student_logits: Tensor) -> Tensor:
    """−d over forget images: going down it drives student and teacher apart."""
    return -distance(teacher_logits, student_logits).mean()


def min_step_loss(teacher_logits: Tensor, student_logits: Tensor, labels: Tensor, alpha: float, gamma: float) -> Tensor:
    """α·d + γ·CE over retained images."""
    obey = distance(teacher_logits, student_logits).mean()
    return alpha * obey + gamma * F.cross_entropy(student_logits, labels)


@dataclass(frozen=True)
class Scrub(WeightChange):
    """min α·d(D_r) + γ·CE(D_r) − d(D_f), by a pass of max-steps over D_f and one of min-steps over D_r in turn; after
    `max_epochs` only min-steps [Kurmanji et al. 2023, Alg. 1].

    SGD with momentum 0.9, weight decay 5e-4, learning rate 5e-4, a tenth of it after some epochs (the paper's
    appendix); α = 0.001, γ = 0.99, 2 of 5 epochs with max-steps as known from its runs. At θ₀ student and teacher
    agree, where the gradient of d is zero: the first max-steps do nothing. BatchNorm stays as it is.
    """

    steps: Steps = field(default_factory=lambda: Steps(epochs=5, learning_rate=5e-4, schedule="constant"))
    alpha: float = 0.001
    gamma: float = 0.99
    max_epochs: int = 2
    slow_after: int = 3
    """Epochs after which the learning rate is a tenth."""

    name: ClassVar[str] = "SCRUB"
    paper: ClassVar[str] = "Kurmanji et al. 2023"

    def __post_init__(self) -> None:
        for name in ("alpha", "gamma", "max_epochs", "slow_after"):
            if getattr(self, name) < 0:
                raise RequestError(f"`{name}` must be at least 0, got {getattr(self, name)!r}.", where="Scrub")

    def trials(self) -> Iterator[Self]:
        """Three learning rates with two numbers of max-epochs, where there are epochs for both."""
        for epochs in dict.fromkeys(min(each, self.steps.epochs) for each in (2, 4)):
            for rate in (5e-4, 5e-3, 5e-2):
                yield replace(self, max_epochs=epochs, steps=replace(self.steps, learning_rate=rate))

    def change(self, work: Work) -> None:
        """Max-steps and min-steps in turn."""
        steps, size, teacher = self.steps, self.steps.batch_size, work.frozen()
        each = work.steps_of_forget(size), work.steps_of_retain(size)
        descent = Descent(work, steps, min(self.max_epochs, steps.epochs) * each[0] + steps.epochs * each[1])

        def disobey(images: Tensor) -> Tensor:
            return max_step_loss(*_said(work, teacher, images))

        def obey(images: Tensor, labels: Tensor) -> Tensor:
            return min_step_loss(*_said(work, teacher, images), labels, self.alpha, self.gamma)

        for epoch in range(1, steps.epochs + 1):
            descent.rate_factor = 0.1 if epoch > self.slow_after else 1.0
            if epoch <= self.max_epochs:
                for batch in work.forget(size, epoch, steps.augmentation):
                    descent.step(disobey, batch.images)
                descent.end_of(f"max-steps {epoch}")
            for batch in work.retain(size, epoch, steps.augmentation):
                descent.step(obey, batch.images, batch.labels)
            descent.end_of(f"min-steps {epoch}")


def _said(work: Work, teacher: Classifier, images: Tensor) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        taught = work.logits(images, teacher)
    return taught, work.logits(images)
