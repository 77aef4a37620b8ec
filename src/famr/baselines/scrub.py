"""SCRUB: a student that follows its teacher on retained images and departs from it on forget images."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional as F

from famr.baselines.base import grid
from famr.baselines.descent import Descent, Steps
from famr.baselines.session import BaselineSession, WeightBaseline
from famr.errors import RequestError
from famr.losses.objective import target_kl


def teacher_kl(teacher_logits: Tensor, student_logits: Tensor) -> Tensor:
    """d(x) = KL(p_teacher ‖ p_student) of each image.

    Args:
        teacher_logits: (batch, classes).
        student_logits: (batch, classes).

    Returns:
        (batch,).
    """
    return target_kl(student_logits, torch.softmax(teacher_logits, dim=-1))


def max_step_loss(teacher_logits: Tensor, student_logits: Tensor) -> Tensor:
    """−d(D_f): a step down this loss drives student and teacher apart.

    Args:
        teacher_logits: Of forget images, (batch, classes).
        student_logits: (batch, classes).
    """
    return -teacher_kl(teacher_logits, student_logits).mean()


def min_step_loss(teacher_logits: Tensor, student_logits: Tensor, labels: Tensor, alpha: float, gamma: float) -> Tensor:
    """α·d(D_r) + γ·CE(D_r).

    Args:
        teacher_logits: Of retained images, (batch, classes).
        student_logits: (batch, classes).
        labels: Their classes.
        alpha: α.
        gamma: γ.
    """
    distance = teacher_kl(teacher_logits, student_logits).mean()
    return alpha * distance + gamma * F.cross_entropy(student_logits, labels)


@dataclass(frozen=True)
class Scrub(WeightBaseline):
    """min α·d(D_r) + γ·CE(D_r) − d(D_f) [Kurmanji et al. 2023, Alg. 1].

    In turn a pass of max-steps over D_f and a pass of min-steps over D_r; after `max_epochs` only min-steps. At θ₀
    student and teacher agree and the gradient of d is zero: the first max-steps change nothing. BatchNorm keeps its
    statistics.

    Attributes:
        steps: SGD with momentum 0.9, weight decay 5e-4 and η 5e-4 (the paper's appendix); 5 epochs as in its runs.
        alpha: α, as in the paper's runs.
        gamma: γ, as in the paper's runs.
        max_epochs: Epochs with max-steps, as in the paper's runs.
        slow_after: Epochs after which the learning rate is a tenth.
    """

    steps: Steps = field(default_factory=lambda: Steps(epochs=5, learning_rate=5e-4, schedule="constant"))
    alpha: float = 0.001
    gamma: float = 0.99
    max_epochs: int = 2
    slow_after: int = 3

    name = "SCRUB"
    paper = "Kurmanji et al. 2023"
    tuning = grid(max_epochs=(2, 4), learning_rate=(5e-4, 5e-3, 5e-2))

    def __post_init__(self) -> None:
        for name in ("alpha", "gamma", "max_epochs", "slow_after"):
            if getattr(self, name) < 0:
                raise RequestError(f"`{name}` must be at least 0, got {getattr(self, name)!r}.", where="Scrub")

    def trials(self) -> Iterator[Self]:
        """See `Baseline.trials`; with no more epochs of max-steps than there are epochs."""
        yield from dict.fromkeys(
            replace(trial, max_epochs=min(trial.max_epochs, trial.steps.epochs)) for trial in super().trials()
        )

    def change(self, session: BaselineSession) -> None:
        """See `WeightBaseline.change`: max-steps and min-steps in turn."""
        steps, size, teacher = self.steps, self.steps.batch_size, session.frozen_copy()
        forget_steps, retain_steps = session.forget_steps(size), session.retain_steps(size)

        def steps_of(epochs: int) -> int:
            return min(self.max_epochs, epochs) * forget_steps + epochs * retain_steps

        slow_from = steps_of(self.slow_after)
        total = steps_of(steps.epochs)
        descent = Descent(session, steps, total, factor=lambda step: 0.1 if step >= slow_from else 1.0)

        def teacher_and_student(images: Tensor) -> tuple[Tensor, Tensor]:
            with torch.no_grad():
                teacher_logits = session.logits(images, teacher)
            return teacher_logits, session.logits(images)

        def max_step(images: Tensor) -> Tensor:
            return max_step_loss(*teacher_and_student(images))

        def min_step(images: Tensor, labels: Tensor) -> Tensor:
            return min_step_loss(*teacher_and_student(images), labels, self.alpha, self.gamma)

        for epoch in range(1, steps.epochs + 1):
            if epoch <= self.max_epochs:
                for batch in session.forget_batches(size, epoch):
                    descent.step(max_step, batch.images)
                descent.end(f"max-steps {epoch}")
            for batch in session.retain_batches(size, epoch):
                descent.step(min_step, batch.images, batch.labels)
            descent.end(f"min-steps {epoch}")
