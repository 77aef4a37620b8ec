"""Boundary shrink: give each image of the forgotten class to the class on the other side of the nearest boundary."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from famr.baselines.alternative import WHOLE_CLASSES
from famr.baselines.descent import Descent, Steps
from famr.baselines.work import WeightChange, Work
from famr.data.request import Kind
from famr.errors import RequestError
from famr.targets.masked import without


def across_the_boundary(images: Tensor, gradient: Tensor, reach: Tensor) -> Tensor:
    """x′ = x + ε·sign(∇ₓCE): one step that makes the model less sure of the true class."""
    return images + reach * gradient.sign()


def nearest_class(logits: Tensor, forgotten: Tensor) -> Tensor:
    """What the model takes x′ for, forgotten classes (indices) aside.

    >>> nearest_class(torch.tensor([[9.0, 1.0, 2.0]]), torch.tensor([0]))
    tensor([2])
    """
    return without(logits, forgotten).argmax(dim=-1)


def boundary_shrink_loss(logits: Tensor, nearest: Tensor) -> Tensor:
    """CE on forget images with the label of the class next to them."""
    return F.cross_entropy(logits, nearest)


@dataclass(frozen=True)
class BoundaryShrink(WeightChange):
    """L = CE(x, y′) on D_f, y′ what the original takes x + ε·sign(∇ₓCE(x, y)) for [Chen et al. 2023].

    10 epochs of SGD with learning rate 1e-5, batches of 64; ε = 0.1 in pixels from 0 to 1. The forgotten classes are
    left out of the search for y′, where the paper takes whatever the attack finds. No retained images are used.
    BatchNorm stays as it is.
    """

    steps: Steps = field(default_factory=lambda: Steps(epochs=10, learning_rate=1e-5, batch_size=64, weight_decay=0.0))
    epsilon: float = 0.1

    name: ClassVar[str] = "boundary shrink"
    paper: ClassVar[str] = "Chen et al. 2023"
    needs_retain: ClassVar[bool] = False
    kinds: ClassVar[tuple[Kind, ...]] = WHOLE_CLASSES
    why_not: ClassVar[str] = (
        "it moves the boundary around whole classes, and after this request the classes of the forgotten images stay"
    )

    def __post_init__(self) -> None:
        if not self.epsilon > 0:
            raise RequestError(f"`epsilon` must be above 0, got {self.epsilon!r}.", where="BoundaryShrink")

    def trials(self) -> Iterator[Self]:
        """Six learning rates."""
        for steps in self.steps.at((1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2)):
            yield replace(self, steps=steps)

    def change(self, work: Work) -> None:
        """Find the neighbours of all images once, from the original; then passes over the forget set."""
        steps = self.steps
        nearest = torch.cat([self.neighbours(work, b.images, b.labels) for b in work.in_order(work.splits.forget)])
        descent = Descent(work, steps, steps.epochs * work.steps_of_forget(steps.batch_size))

        def loss(images: Tensor, labels: Tensor) -> Tensor:
            return boundary_shrink_loss(work.logits(images), labels)

        for epoch in range(1, steps.epochs + 1):
            for batch in work.forget(steps.batch_size, epoch, steps.augmentation):
                descent.step(loss, batch.images, nearest[batch.positions.to(work.device)])
            descent.end_of(f"epoch {epoch}")

    def neighbours(self, work: Work, images: Tensor, labels: Tensor) -> Tensor:
        """The class next to each image, as the model in `work` sees it now."""
        images = images.detach().requires_grad_(True)
        loss = F.cross_entropy(work.logits(images), labels, reduction="sum")
        (gradient,) = torch.autograd.grad(loss, images)
        std = torch.tensor(
            work.model.require_preprocessing().std, device=work.device
        )  # the network sees (x − mean)/std
        with torch.no_grad():
            moved = across_the_boundary(images, gradient, self.epsilon / std[:, None, None])
            forgotten = torch.tensor(work.splits.forgotten_classes(), device=work.device)
            return nearest_class(work.logits(moved), forgotten)
