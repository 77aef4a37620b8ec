"""DELETE: distil the original into itself with the forgotten class masked out of its predictions."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from famr.baselines.base import WHOLE_CLASSES, numbers
from famr.baselines.descent import ADAM, Descent, Steps
from famr.baselines.session import BaselineSession, WeightBaseline
from famr.losses.objective import target_kl
from famr.targets.masked import masked_target


def delete_loss(teacher_logits: Tensor, student_logits: Tensor, forgotten: Tensor) -> Tensor:
    """KL(softmax(mask(z₀)) ‖ p_θ), the mask putting −∞ on the forgotten classes [Zhou et al. 2025].

    Args:
        teacher_logits: z₀ of forget images, (batch, classes).
        student_logits: (batch, classes).
        forgotten: Class indices.
    """
    return target_kl(student_logits, masked_target(teacher_logits, forgotten, temperature=1.0)).mean()


@dataclass(frozen=True)
class Delete(WeightBaseline):
    """L = KL(softmax(mask(z₀)) ‖ p_θ) on D_f [Zhou et al. 2025]: FAMR's masked target without anchor or temperature.

    BatchNorm keeps its statistics.

    Attributes:
        steps: 20 epochs of SGD without weight decay, as in the authors' code; η 1e-3 and the schedule are our choice.
            The authors' η is 5e-5, constant, with batches of 128.
    """

    steps: Steps = field(default_factory=lambda: Steps(epochs=20, learning_rate=1e-3, weight_decay=0.0))

    name = "DELETE"
    paper = "Zhou et al. 2025"
    needs_retain = False
    kinds = WHOLE_CLASSES
    refusal_reason = (
        "it masks whole classes out of the predictions, and after this request the classes of the forgotten images stay"
    )
    published = numbers(learning_rate=5e-5, batch_size=128, schedule="constant", training_mode=True)
    tuning = (
        {"learning_rate": 3e-4},
        {"learning_rate": 3e-3},
        {**ADAM, "learning_rate": 1e-5},
        {**ADAM, "learning_rate": 1e-4},
    )

    def change(self, session: BaselineSession) -> None:
        """See `WeightBaseline.change`."""
        steps, size, teacher = self.steps, self.steps.batch_size, session.frozen_copy()
        forgotten = torch.tensor(session.splits.forgotten_classes(), device=session.device)
        descent = Descent(session, steps, total=steps.epochs * session.forget_steps(size))

        def loss(images: Tensor) -> Tensor:
            with torch.no_grad():
                teacher_logits = session.logits(images, teacher)
            return delete_loss(teacher_logits, session.logits(images), forgotten)

        for epoch in descent.epochs():
            for batch in descent.within(session.forget_batches(size, epoch)):
                descent.step(loss, batch.images)
