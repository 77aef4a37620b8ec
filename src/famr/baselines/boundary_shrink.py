"""Boundary shrink: train each forget image towards the class on the other side of the nearest decision boundary."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from famr.baselines.base import WHOLE_CLASSES, numbers
from famr.baselines.descent import ADAM, Descent, Steps
from famr.baselines.session import BaselineSession, WeightBaseline
from famr.errors import RequestError
from famr.targets.masked import without


def across_the_boundary(images: Tensor, gradient: Tensor, epsilon: Tensor) -> Tensor:
    """x′ = x + ε·sign(∇ₓCE(x, y)): one step that lowers the confidence in the true class.

    Args:
        images: x, (batch, channels, height, width).
        gradient: ∇ₓCE(x, y).
        epsilon: ε, in the units of the images.
    """
    return images + epsilon * gradient.sign()


def nearest_class(logits: Tensor, forgotten: Tensor) -> Tensor:
    """The predicted class of x′ among those that are not forgotten.

    Args:
        logits: Of x′, (batch, classes).
        forgotten: Class indices.

    >>> nearest_class(torch.tensor([[9.0, 1.0, 2.0]]), torch.tensor([0]))
    tensor([2])
    """
    return without(logits, forgotten).argmax(dim=-1)


def boundary_shrink_loss(logits: Tensor, nearest: Tensor) -> Tensor:
    """CE(x, y′) [Chen et al. 2023].

    Args:
        logits: Of forget images, (batch, classes).
        nearest: Their nearest classes y′.
    """
    return F.cross_entropy(logits, nearest)


@dataclass(frozen=True)
class BoundaryShrink(WeightBaseline):
    """L = CE(x, y′) on D_f, y′ the original's prediction for x + ε·sign(∇ₓCE(x, y)) [Chen et al. 2023].

    The forgotten classes are excluded from y′, where the paper takes whatever the attack finds. BatchNorm keeps its
    statistics.

    Attributes:
        steps: 10 epochs of SGD with η 1e-5, batches of 64, as in the paper.
        epsilon: ε in pixel values from 0 to 1, as in the paper.
    """

    steps: Steps = field(default_factory=lambda: Steps(epochs=10, learning_rate=1e-5, batch_size=64, weight_decay=0.0))
    epsilon: float = 0.1

    name = "boundary shrink"
    paper = "Chen et al. 2023"
    needs_retain = False
    kinds = WHOLE_CLASSES
    refusal_reason = (
        "it moves the boundary around whole classes, and after this request the classes of the forgotten images stay"
    )
    published = numbers(schedule="constant", training_mode=True)
    tuning = (
        {"learning_rate": 1e-4},
        {"learning_rate": 1e-3},
        {**ADAM, "learning_rate": 1e-5},
        {**ADAM, "learning_rate": 1e-4},
    )

    def __post_init__(self) -> None:
        if not self.epsilon > 0:
            raise RequestError(f"`epsilon` must be above 0, got {self.epsilon!r}.", where="BoundaryShrink")

    def change(self, session: BaselineSession) -> None:
        """See `WeightBaseline.change`: y′ of all images from the original, then steps on the forget set."""
        steps, size = self.steps, self.steps.batch_size
        batches = session.batches(session.forget)
        with session.evaluation_mode():
            nearest = torch.cat([self.nearest_classes(session, batch.images, batch.labels) for batch in batches])
        descent = Descent(session, steps, total=steps.epochs * session.forget_steps(size))

        def loss(images: Tensor, labels: Tensor) -> Tensor:
            return boundary_shrink_loss(session.logits(images), labels)

        for epoch in descent.epochs():
            for batch in descent.within(session.forget_batches(size, epoch, labels=nearest)):
                descent.step(loss, batch.images, batch.labels)

    def nearest_classes(self, session: BaselineSession, images: Tensor, labels: Tensor) -> Tensor:
        """y′ of some images, with the session's present weights.

        Args:
            session: The run.
            images: Normalised, (batch, channels, height, width).
            labels: Their classes.
        """
        images = images.detach().requires_grad_(True)
        loss = F.cross_entropy(session.logits(images), labels, reduction="sum")
        (gradient,) = torch.autograd.grad(loss, images)
        std = torch.tensor(session.model.require_preprocessing().std, device=session.device)
        forgotten = torch.tensor(session.splits.forgotten_classes(), device=session.device)
        with torch.no_grad():
            moved = across_the_boundary(
                images, gradient, self.epsilon / std[:, None, None]
            )  # images are (x − mean)/std
            return nearest_class(session.logits(moved), forgotten)
