"""DELETE: distil the original into itself with the forgotten class masked out of its answers. No anchor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from famr.baselines.alternative import WHOLE_CLASSES
from famr.baselines.descent import Descent, Steps
from famr.baselines.work import WeightChange, Work
from famr.data.request import Kind
from famr.losses.objective import target_kl
from famr.targets.masked import masked_target


def delete_loss(teacher_logits: Tensor, student_logits: Tensor, forgotten: Tensor) -> Tensor:
    """KL(softmax(mask(z₀)) ‖ p_θ), the mask putting −∞ on the forgotten classes (indices)."""
    return target_kl(student_logits, masked_target(teacher_logits, forgotten, temperature=1.0)).mean()


@dataclass(frozen=True)
class Delete(WeightChange):
    """L = KL(softmax(mask(z₀)) ‖ p_θ) on D_f [Zhou et al. 2025]: FAMR's masked target without anchor or temperature.

    The paper's learning rate and epochs could not be looked up; 20 epochs of SGD at 1e-3 are ours. No retained images
    are used. BatchNorm stays as it is.
    """

    steps: Steps = field(default_factory=lambda: Steps(epochs=20, learning_rate=1e-3, weight_decay=0.0))

    name: ClassVar[str] = "DELETE"
    paper: ClassVar[str] = "Zhou et al. 2025"
    needs_retain: ClassVar[bool] = False
    kinds: ClassVar[tuple[Kind, ...]] = WHOLE_CLASSES
    why_not: ClassVar[str] = (
        "it masks whole classes out of the answers, and after this request the classes of the forgotten images stay"
    )

    def trials(self) -> Iterator[Self]:
        """Six learning rates."""
        for steps in self.steps.at((1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)):
            yield replace(self, steps=steps)

    def change(self, work: Work) -> None:
        """Passes over the forget set."""
        steps, teacher = self.steps, work.frozen()
        forgotten = torch.tensor(work.splits.forgotten_classes(), device=work.device)
        descent = Descent(work, steps, steps.epochs * work.steps_of_forget(steps.batch_size))

        def loss(images: Tensor) -> Tensor:
            with torch.no_grad():
                taught = work.logits(images, teacher)
            return delete_loss(taught, work.logits(images), forgotten)

        for epoch in range(1, steps.epochs + 1):
            for batch in work.forget(steps.batch_size, epoch, steps.augmentation):
                descent.step(loss, batch.images)
            descent.end_of(f"epoch {epoch}")
