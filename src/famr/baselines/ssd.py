"""Selective synaptic dampening: shrink the weights that matter more to the forget set than to all data. No training."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from famr.baselines.base import grid
from famr.baselines.session import BaselineSession, WeightBaseline
from famr.data.loaders import LabelledImages
from famr.engine.graphs import GraphedStep
from famr.errors import RequestError
from famr.models.layers import trainable


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

    I is the mean of the squared gradients of batches, not of single images. I_D is over all training images in mixed
    batches; with single images I_D ≥ |D_f|/|D|·I_f, and α = 10 would select nothing of a class that is a tenth of the
    data. The paper stores I_D once after training; here its pass is counted. BatchNorm keeps its statistics.

    Attributes:
        alpha: α, 10 in the paper: weights with I_f above α·I_D are dampened.
        lam: λ, 1 in the paper: how much of them is left.
        batch_size: Images of a gradient, on which I depends; our choice.
    """

    alpha: float = 10.0
    lam: float = 1.0
    batch_size: int = 256

    name = "SSD"
    paper = "Foster et al. 2024"
    tuning = grid(alpha=(2.0, 5.0, 10.0, 25.0, 50.0, 100.0))

    def __post_init__(self) -> None:
        for name in ("alpha", "lam", "batch_size"):
            if not getattr(self, name) > 0:
                raise RequestError(f"`{name}` must be above 0, got {getattr(self, name)!r}.", where="SSD")

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
        forget = session.batches(session.forget, self.batch_size)
        mixed = session.mixed_batches(self.batch_size, epoch=0)
        return (
            mean_squared_gradient(session, ((batch.images, batch.labels) for batch in forget)),
            mean_squared_gradient(session, ((batch.images, batch.labels) for batch in mixed)),
        )


def mean_squared_gradient(session: BaselineSession, batches: Iterable[LabelledImages]) -> list[Tensor]:
    """The mean over batches of (∇CE)², one tensor a parameter.

    Args:
        session: The run.
        batches: Images and labels.
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
    for images, labels in batches:
        step((images, labels))
        before += len(images)
        session.image_passes = before  # a replayed step counts none
        count += 1
    return [sum_ / count for sum_ in total]
