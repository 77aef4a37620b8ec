"""Selective synaptic dampening: shrink the weights that matter more to the forget set than to all data. No training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Self, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from famr.baselines.base import numbers
from famr.baselines.session import BaselineSession, WeightBaseline
from famr.data import Images
from famr.data.loaders import order
from famr.engine.graphs import GraphedStep
from famr.errors import RequestError
from famr.models.layers import trainable

Item = TypeVar("Item")


def dampened(weight: Tensor, forget: Tensor, whole: Tensor, alpha: float, lam: float) -> Tensor:
    """min(λ·I_D/I_f, 1)·θ where I_f > α·I_D, else θ [Foster et al. 2024, Alg. 1].

    Args:
        weight: θ, of any shape.
        forget: I_f, of the same shape.
        whole: I_D, of the same shape.
        alpha: α.
        lam: λ.

    >>> ones = torch.ones(4)
    >>> dampened(ones, forget=torch.tensor([30.0, 20.0, 10.0, 0.0]), whole=ones, alpha=10.0, lam=25.0)
    tensor([0.8333, 1.0000, 1.0000, 1.0000])
    """
    factor = (lam * whole / forget).clamp(max=1.0)  # 0/0 only where nothing is selected
    return torch.where(forget > alpha * whole, factor * weight, weight)


@dataclass(frozen=True)
class SSD(WeightBaseline):
    """θᵢ ← min(λ·I_D,ᵢ/I_f,ᵢ, 1)·θᵢ where I_f,ᵢ > α·I_D,ᵢ; I the squared gradients of the loss [Foster et al. 2024].

    I is the mean of the squared gradients of batches, not of single images, so that it depends on what a batch holds.
    In the authors' code a pass for a class goes through the training images class by class: I_D is that of batches of
    one class each, as I_f is. In batches of all classes gradients cancel, I_D is smaller, and α = 10 destroys a
    model. For samples, batches are drawn at random. The paper stores I_D once after training; here its pass is counted.
    BatchNorm keeps its statistics.

    Attributes:
        alpha: α: weights with I_f above α·I_D are dampened; 10 in the paper, 5 for a ViT (its classes).
        lam: λ, 1 in the paper: how much of them is left.
        batch_size: Images of a gradient; 64 in the authors' code.
        most_steps: Limit on the batches, which are then spread evenly over both sets; None: every image once.
    """

    alpha: float = 10.0
    lam: float = 1.0
    batch_size: int = 64
    most_steps: int | None = None

    name = "SSD"
    paper = "Foster et al. 2024"
    published = numbers(alpha=5.0)
    tuning = ({"alpha": 2.0}, {"alpha": 3.5}, {"alpha": 7.0}, {"alpha": 25.0})

    def __post_init__(self) -> None:
        for name in ("alpha", "lam", "batch_size"):
            if not getattr(self, name) > 0:
                raise RequestError(f"`{name}` must be above 0, got {getattr(self, name)!r}.", where="SSD")
        if self.most_steps is not None and self.most_steps < 3:
            raise RequestError(f"`most_steps` must be at least 3, or None, got {self.most_steps!r}.", where="SSD")

    def shortened(self, steps: int, planned: int) -> Self:
        """See `Baseline.shortened`: I_f and I_D from a part of their batches.

        Args:
            steps: Batches that it may use.
            planned: Batches that it uses uncut.
        """
        return self if steps >= planned else self.with_numbers(most_steps=max(3, steps))

    def change(self, session: BaselineSession) -> None:
        """See `WeightBaseline.change`: one pass over all training images, and one more over the forget set."""
        parameters = trainable(session.model.module)
        forget, whole = self.importances(session)
        selected = 0
        with torch.no_grad():
            for parameter, own, all_ in zip(parameters, forget, whole, strict=True):
                selected += int((own > self.alpha * all_).sum())
                parameter.copy_(dampened(parameter, own, all_, self.alpha, self.lam))
        session.facts["share_of_weights"] = selected / sum(parameter.numel() for parameter in parameters)

    def importances(self, session: BaselineSession) -> tuple[list[Tensor], list[Tensor]]:
        """I_f and I_D, one tensor a parameter.

        Args:
            session: The run.
        """
        retain, size = session.retain, self.batch_size
        by_class = session.splits.forgets_classes()
        rows = torch.argsort(retain.targets, stable=True) if by_class else order(len(retain), session.seed)
        of_retain, of_forget = torch.split(rows, size), torch.split(torch.arange(len(session.forget)), size)
        planned = len(of_retain) + 2 * len(of_forget)
        allowed = min(planned, self.most_steps or planned)
        few = max(1, len(of_forget) * allowed // planned)
        forget = session.forget.take(torch.cat(evenly(of_forget, few)))
        retain = retain.take(torch.cat(evenly(of_retain, max(1, allowed - 2 * few))))
        steps = -(-len(retain) // size) + 2 * -(-len(forget) // size)
        session.facts.update(steps=steps, steps_planned=planned)
        importance = mean_squared_gradient(session, [forget], size)
        return importance, mean_squared_gradient(session, [retain, forget], size)


def evenly(items: Sequence[Item], count: int) -> list[Item]:
    """Some items, spread evenly over all of them.

    Args:
        items: All items.
        count: How many to take; no more than there are.

    >>> evenly("abcdef", 3), evenly("abc", 3), evenly("abc", 1)
    (['a', 'c', 'e'], ['a', 'b', 'c'], ['a'])
    """
    return [items[index * len(items) // count] for index in range(count)]


def mean_squared_gradient(session: BaselineSession, sets: Sequence[Images], size: int) -> list[Tensor]:
    """The mean over the batches of some sets of (∇CE)², one tensor a parameter.

    Args:
        session: The run.
        sets: Images, each set in its order.
        size: Images of a batch.
    """
    parameters = trainable(session.model.module)
    total = [torch.zeros_like(parameter) for parameter in parameters]

    def add(images: Tensor, labels: Tensor) -> Tensor:
        loss = F.cross_entropy(session.logits(images), labels)
        for sum_, gradient in zip(total, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True):
            if gradient is not None:
                sum_ += gradient.square()
        return loss.detach()

    step = GraphedStep(add, session.device)
    count, before = 0, session.image_passes
    for batch in chain.from_iterable(session.batches(images, size) for images in sets):
        step((batch.images, batch.labels))
        before += len(batch.images)
        session.image_passes = before  # a replayed step counts none
        count += 1
    return [sum_ / count for sum_ in total]
