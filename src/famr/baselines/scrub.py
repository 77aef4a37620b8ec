"""SCRUB: a student that follows its teacher on retained images and departs from it on forget images."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional as F

from famr.baselines.base import numbers
from famr.baselines.descent import Descent, Steps
from famr.baselines.session import BaselineSession, WeightBaseline
from famr.errors import RequestError
from famr.losses.objective import target_kl


def teacher_kl(teacher_logits: Tensor, student_logits: Tensor, temperature: float = 1.0) -> Tensor:
    """d(x) = T²·KL(softmax(z_teacher/T) ‖ softmax(z_student/T)) of each image.

    T² keeps the size of the gradient as T grows, as in the distillation that the authors' code builds on.

    Args:
        teacher_logits: z_teacher, (batch, classes).
        student_logits: z_student, (batch, classes).
        temperature: T.

    Returns:
        (batch,).

    >>> teacher, student = torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 0.0]])
    >>> [round(float(teacher_kl(teacher, student, temperature)), 3) for temperature in (1.0, 4.0)]
    [0.328, 0.485]
    """
    softened = torch.softmax(teacher_logits / temperature, dim=-1)
    return temperature**2 * target_kl(student_logits / temperature, softened)


def max_step_loss(teacher_logits: Tensor, student_logits: Tensor, temperature: float = 1.0) -> Tensor:
    """−d(D_f): a step down this loss drives student and teacher apart.

    Args:
        teacher_logits: Of forget images, (batch, classes).
        student_logits: (batch, classes).
        temperature: T of d.
    """
    return -teacher_kl(teacher_logits, student_logits, temperature).mean()


def min_step_loss(
    teacher_logits: Tensor,
    student_logits: Tensor,
    labels: Tensor,
    alpha: float,
    gamma: float,
    temperature: float = 1.0,
) -> Tensor:
    """α·d(D_r) + γ·CE(D_r).

    Args:
        teacher_logits: Of retained images, (batch, classes).
        student_logits: (batch, classes).
        labels: Their classes.
        alpha: α.
        gamma: γ.
        temperature: T of d.
    """
    distance = teacher_kl(teacher_logits, student_logits, temperature).mean()
    return alpha * distance + gamma * F.cross_entropy(student_logits, labels)


@dataclass(frozen=True)
class Scrub(WeightBaseline):
    """min α·d(D_r) + γ·CE(D_r) − d(D_f) [Kurmanji et al. 2023, Alg. 1].

    In turn a pass of max-steps over D_f and a pass of min-steps over D_r; after `max_epochs` only min-steps. At θ₀
    student and teacher agree and the gradient of d is zero: the first max-steps change nothing, so that one epoch
    cannot forget. Where there is no time for all epochs, every pass is shortened instead. BatchNorm keeps its
    statistics.

    Attributes:
        steps: SGD with momentum 0.9, weight decay 5e-4 and η 5e-4, 5 epochs, as in the authors' large runs. Their
            small runs, the published numbers here, take Adam, α 0.5, γ 1 and 3 epochs with max-steps.
        alpha: α.
        gamma: γ.
        max_epochs: Epochs with max-steps.
        slow_after: Epochs after which the learning rate is a tenth.
        temperature: T of the distance d, 4 in the authors' code.
        forget_batch_size: Images of a max-step, 32 in the authors' large runs.
    """

    steps: Steps = field(default_factory=lambda: Steps(epochs=5, learning_rate=5e-4, schedule="constant"))
    alpha: float = 0.001
    gamma: float = 0.99
    max_epochs: int = 2
    slow_after: int = 3
    temperature: float = 4.0
    forget_batch_size: int = 32

    name = "SCRUB"
    paper = "Kurmanji et al. 2023"
    published = numbers(optimiser="adam", alpha=0.5, gamma=1.0, max_epochs=3, training_mode=True)
    tuning = (
        {**published, "learning_rate": 5e-5, "training_mode": False},
        {**published, "learning_rate": 1e-4, "max_epochs": 5, "training_mode": False},
        {"alpha": 0.5, "gamma": 1.0, "max_epochs": 3, "learning_rate": 5e-3},
        {"alpha": 0.5, "gamma": 1.0, "max_epochs": 3, "learning_rate": 2e-2},
    )

    def __post_init__(self) -> None:
        for name in ("alpha", "gamma", "max_epochs", "slow_after"):
            if getattr(self, name) < 0:
                raise RequestError(f"`{name}` must be at least 0, got {getattr(self, name)!r}.", where="Scrub")
        for name in ("temperature", "forget_batch_size"):
            if not getattr(self, name) > 0:
                raise RequestError(f"`{name}` must be above 0, got {getattr(self, name)!r}.", where="Scrub")

    def shortened(self, steps: int, planned: int) -> Self:
        """See `Baseline.shortened`: all epochs stay, each pass takes its share of the steps.

        Args:
            steps: Steps that it may take.
            planned: Steps that it takes uncut.
        """
        return self if steps >= planned else self.with_numbers(most_steps=max(2, steps))

    def change(self, session: BaselineSession) -> None:
        """See `WeightBaseline.change`: max-steps and min-steps in turn."""
        steps, size, teacher = self.steps, self.steps.batch_size, session.frozen_copy()
        forget_steps, retain_steps = session.forget_steps(self.forget_batch_size), session.retain_steps(size)

        def steps_of(epochs: int) -> int:
            return min(self.max_epochs, epochs) * forget_steps + epochs * retain_steps

        total = steps_of(steps.epochs)
        if steps.most_steps is not None and steps.most_steps < total:
            forget_steps, retain_steps = (max(1, n * steps.most_steps // total) for n in (forget_steps, retain_steps))
        slow_from = steps_of(self.slow_after)
        descent = Descent(session, steps, total, factor=lambda step: 0.1 if step >= slow_from else 1.0)

        def teacher_and_student(images: Tensor) -> tuple[Tensor, Tensor]:
            with torch.no_grad():
                teacher_logits = session.logits(images, teacher)
            return teacher_logits, session.logits(images)

        def max_step(images: Tensor) -> Tensor:
            return max_step_loss(*teacher_and_student(images), self.temperature)

        def min_step(images: Tensor, labels: Tensor) -> Tensor:
            return min_step_loss(*teacher_and_student(images), labels, self.alpha, self.gamma, self.temperature)

        for epoch in range(1, steps.epochs + 1):
            if descent.total - descent.taken <= (forget_steps if epoch <= self.max_epochs else 0):
                break  # no time for min-steps: the last ones are never max-steps
            if epoch <= self.max_epochs:
                for batch in islice(session.forget_batches(self.forget_batch_size, epoch), forget_steps):
                    descent.step(max_step, batch.images)
                descent.end(f"max-steps {epoch}")
            for batch in descent.within(islice(session.retain_batches(size, epoch), retain_steps)):
                descent.step(min_step, batch.images, batch.labels)
            descent.end(f"min-steps {epoch}")
