"""Two teachers: the original for what is retained, one that knows nothing for what is forgotten."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from famr.baselines.descent import Descent, Steps
from famr.baselines.untrained import untrained
from famr.baselines.work import Shelf, WeightChange, Work
from famr.data.loaders import order
from famr.errors import RequestError
from famr.losses.objective import target_kl


def bad_teacher_target(competent: Tensor, incompetent: Tensor, forgotten: Tensor) -> Tensor:
    """What to answer: softmax of the incompetent teacher on forget images, of the competent one on the others."""
    return torch.softmax(torch.where(forgotten[:, None], incompetent, competent), dim=-1)


def bad_teacher_loss(student: Tensor, target: Tensor) -> Tensor:
    """The mean of (1 − l)·KL(T_s ‖ S) + l·KL(T_d ‖ S), l = 1 on forget images [Chundawat et al. 2023]."""
    return target_kl(student, target).mean()


@dataclass(frozen=True)
class BadTeacher(WeightChange):
    """L = KL(T_s ‖ S) on retained and KL(T_d ‖ S) on forget images; T_s is the original, T_d the same architecture with
    random weights [Chundawat et al. 2023].

    One epoch of Adam at 1e-4, batches of 256, with 30 % of the retained images. BatchNorm stays as it is.
    """

    steps: Steps = field(
        default_factory=lambda: Steps(epochs=1, learning_rate=1e-4, optimiser="adam", weight_decay=0.0)
    )
    retain_share: float = 0.3

    name: ClassVar[str] = "bad teacher"
    paper: ClassVar[str] = "Chundawat et al. 2023"

    def __post_init__(self) -> None:
        if not 0 < self.retain_share <= 1:
            raise RequestError(
                f"`retain_share` must be above 0, at most 1, got {self.retain_share!r}.", where="BadTeacher"
            )

    def trials(self) -> Iterator[Self]:
        """Three learning rates, for one epoch and for three."""
        for epochs in (1, 3):
            for rate in (3e-5, 1e-4, 3e-4):
                yield replace(self, steps=replace(self.steps, epochs=epochs, learning_rate=rate))

    def change(self, work: Work) -> None:
        """Passes over the forget set and a part of the retained images, mixed."""
        steps, size = self.steps, self.steps.batch_size
        competent, incompetent = work.frozen(), untrained(work.frozen(), work.seed)
        incompetent.module.to(work.device).requires_grad_(False)
        work.retain_shelf = _some(work.retained, self.retain_share, work.seed)
        part = work.share_of_forget(size)
        rest = max(1, size - part)
        descent = Descent(work, steps, steps.epochs * work.steps_of_retain(rest))

        def loss(images: Tensor, forgotten: Tensor) -> Tensor:
            with torch.no_grad():
                taught = work.logits(images, competent), work.logits(images, incompetent)
            return bad_teacher_loss(work.logits(images), bad_teacher_target(*taught, forgotten))

        for epoch in range(1, steps.epochs + 1):
            for forget, retain in work.both(part, rest, epoch, steps.augmentation):
                images = torch.cat([forget.images, retain.images])
                forgotten = torch.arange(len(images), device=work.device) < len(forget.images)
                descent.step(loss, images, forgotten)
            descent.end_of(f"epoch {epoch}")


def _some(shelf: Shelf, share: float, seed: int) -> Shelf:
    positions = order(len(shelf), seed)[: max(1, round(share * len(shelf)))]
    pixels = None if shelf.pixels is None else shelf.pixels[positions.to(shelf.pixels.device)]
    return Shelf(shelf.images.take(positions), pixels)
