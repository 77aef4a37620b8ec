"""Selective synaptic dampening: shrink the weights that matter more to the forget set than to the rest. No training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from famr.baselines.work import WeightChange, Work
from famr.data.loaders import LabelledImages
from famr.engine.graphs import GraphedStep
from famr.errors import RequestError
from famr.models.layers import trainable


def dampened(weight: Tensor, forget: Tensor, whole: Tensor, alpha: float, lam: float) -> Tensor:
    """min(λ·I_D/I_f, 1)·θ where I_f > α·I_D, else θ [Foster et al. 2024, Alg. 1].

    >>> ones = torch.ones(4)
    >>> dampened(ones, forget=torch.tensor([30.0, 20.0, 10.0, 0.0]), whole=ones, alpha=10.0, lam=25.0)
    tensor([0.8333, 1.0000, 1.0000, 1.0000])
    """
    factor = (lam * whole / forget).clamp(max=1.0)  # 0/0 only where nothing is selected
    return torch.where(forget > alpha * whole, factor * weight, weight)


@dataclass(frozen=True)
class SSD(WeightChange):
    """θᵢ ← min(λ·I_D,ᵢ/I_f,ᵢ, 1)·θᵢ where I_f,ᵢ > α·I_D,ᵢ; I the squared gradients of the loss [Foster et al. 2024].

    α = 10, λ = 1. I is the mean of the squared gradient of batches, not of single images, so it depends on
    `batch_size`, which is ours. I_D is over all training images in mixed batches; with single images I_D could not
    fall below |D_f|/|D|·I_f, and α = 10 would select nothing of a class that is a tenth of the data. The paper stores
    I_D once after training; here its pass is counted. BatchNorm stays as it is.
    """

    alpha: float = 10.0
    """Which weights: those so many times as important to the forget set."""
    lam: float = 1.0
    """How much is left of them."""
    batch_size: int = 256
    """None: on CUDA, where there are enough batches for it to pay."""

    name: ClassVar[str] = "SSD"
    paper: ClassVar[str] = "Foster et al. 2024"

    def __post_init__(self) -> None:
        for name in ("alpha", "lam", "batch_size"):
            if not getattr(self, name) > 0:
                raise RequestError(f"`{name}` must be above 0, got {getattr(self, name)!r}.", where="SSD")

    def trials(self) -> Iterator[Self]:
        """Six α; the paper tunes it first."""
        for alpha in (2.0, 5.0, 10.0, 25.0, 50.0, 100.0):
            yield replace(self, alpha=alpha)

    def change(self, work: Work) -> None:
        """One pass over all training images, and one more over the forget set."""
        selected = 0
        parameters = trainable(work.model.module)
        forget, whole = self.importances(work)
        with torch.no_grad():
            for parameter, own, all_ in zip(parameters, forget, whole, strict=True):
                selected += int((own > self.alpha * all_).sum())
                parameter.copy_(dampened(parameter, own, all_, self.alpha, self.lam))
        work.facts["share_of_weights"] = selected / sum(parameter.numel() for parameter in parameters)

    def importances(self, work: Work) -> tuple[list[Tensor], list[Tensor]]:
        """I_f and I_D, one tensor a parameter."""
        part = work.share_of_forget(self.batch_size)
        rest = max(1, self.batch_size - part)
        own = ((batch.images, batch.labels) for batch in work.in_order(work.splits.forget, self.batch_size))
        mixed = (
            (torch.cat([forget.images, retain.images]), torch.cat([forget.labels, retain.labels]))
            for forget, retain in work.both(part, rest, epoch=0)
        )
        return (
            _importance(work, own, work.steps_of_forget(self.batch_size)),
            _importance(work, mixed, work.steps_of_retain(rest)),
        )


def _importance(work: Work, batches: Iterable[LabelledImages], count: int) -> list[Tensor]:
    """The mean over `count` batches of the squared gradient."""
    parameters = trainable(work.model.module)
    total = [torch.zeros_like(parameter) for parameter in parameters]

    def add(images: Tensor, labels: Tensor) -> Tensor:
        loss = F.cross_entropy(work.logits(images), labels)
        for sum_, gradient in zip(total, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True):
            if gradient is not None:
                sum_ += gradient.square()
        return loss.detach()

    graphed = GraphedStep(add, work.device)
    before, passes = work.image_passes, 0
    for images, labels in batches:
        graphed((images, labels))
        passes += len(images)
    work.image_passes = before + passes  # a replayed step counts none
    return [sum_ / count for sum_ in total]
