"""Bad teacher: distil from the original on retained images, from a network with random weights on forget images."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from famr.baselines.base import numbers
from famr.baselines.descent import Descent, Steps
from famr.baselines.session import BaselineSession, WeightBaseline
from famr.baselines.untrained import untrained
from famr.data.loaders import order
from famr.errors import RequestError
from famr.losses.objective import target_kl


def bad_teacher_target(competent: Tensor, incompetent: Tensor, forgotten: Tensor) -> Tensor:
    """The softmax of the incompetent teacher on forget images, of the competent one on retained images.

    Args:
        competent: Logits of the original, (batch, classes).
        incompetent: Logits of the network with random weights, (batch, classes).
        forgotten: Whether an image belongs to the forget set, (batch,).
    """
    return torch.softmax(torch.where(forgotten[:, None], incompetent, competent), dim=-1)


def bad_teacher_loss(student_logits: Tensor, target: Tensor) -> Tensor:
    """Mean of (1 − l)·KL(T_s ‖ S) + l·KL(T_d ‖ S), l = 1 on forget images [Chundawat et al. 2023].

    Args:
        student_logits: (batch, classes).
        target: What `bad_teacher_target` returned.
    """
    return target_kl(student_logits, target).mean()


@dataclass(frozen=True)
class BadTeacher(WeightBaseline):
    """L = KL(T_s ‖ S) on D_r and KL(T_d ‖ S) on D_f [Chundawat et al. 2023].

    T_s is the original, T_d the same architecture with random weights. BatchNorm keeps its statistics.

    Attributes:
        steps: One epoch of Adam with η 1e-4, batches of 256, as in the paper.
        retain_share: Share of the retained images that is used, 30 % in the paper.
    """

    steps: Steps = field(
        default_factory=lambda: Steps(epochs=1, learning_rate=1e-4, optimiser="adam", weight_decay=0.0)
    )
    retain_share: float = 0.3

    name = "bad teacher"
    paper = "Chundawat et al. 2023"
    published = numbers(schedule="constant")
    tuning = (
        {"learning_rate": 3e-5},
        {"learning_rate": 3e-4},
        {"epochs": 3},
        {"optimiser": "sgd", "learning_rate": 1e-2},
    )

    def __post_init__(self) -> None:
        if not 0 < self.retain_share <= 1:
            raise RequestError(
                f"`retain_share` must be above 0, at most 1, got {self.retain_share!r}.", where="BadTeacher"
            )

    def change(self, session: BaselineSession) -> None:
        """See `WeightBaseline.change`."""
        steps, size = self.steps, self.steps.batch_size
        competent = session.frozen_copy()
        incompetent = untrained(competent, session.seed)
        incompetent.module.to(session.device).requires_grad_(False)
        count = max(1, round(self.retain_share * len(session.retain)))
        session.retain = session.retain.take(order(len(session.retain), session.seed)[:count])
        descent = Descent(session, steps, total=steps.epochs * session.mixed_steps(size))

        def loss(images: Tensor, forgotten: Tensor) -> Tensor:
            with torch.no_grad():
                teachers = session.logits(images, competent), session.logits(images, incompetent)
            return bad_teacher_loss(session.logits(images), bad_teacher_target(*teachers, forgotten))

        for epoch in descent.epochs():
            for batch in descent.within(session.mixed_batches(size, epoch)):
                descent.step(loss, batch.images, batch.forgotten)
