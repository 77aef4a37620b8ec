"""Saliency unlearning: random labels, learned by those weights alone that the forget set depends on most."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from famr.baselines.descent import Descent, Steps
from famr.baselines.gradient_ascent import ascent_loss
from famr.baselines.neg_grad_plus import FORGET_PART
from famr.baselines.random_labels import drawn_labels
from famr.baselines.work import WeightChange, Work
from famr.errors import RequestError
from famr.models.layers import trainable


def saliency_masks(gradients: Sequence[Tensor], share: float) -> list[Tensor]:
    """1 for the `share` of all weights with the largest |gradient|, over all layers together; exactly so many.

    >>> saliency_masks([torch.tensor([3.0, -4.0]), torch.tensor([[1.0], [0.5]])], share=0.5)
    [tensor([True, True]), tensor([[False],
            [False]])]
    """
    flat = torch.cat([gradient.abs().flatten() for gradient in gradients])
    chosen = torch.zeros_like(flat, dtype=torch.bool)
    chosen[torch.topk(flat, round(share * len(flat))).indices] = True
    parts = torch.split(chosen, [gradient.numel() for gradient in gradients])
    return [part.view_as(gradient) for part, gradient in zip(parts, gradients, strict=True)]


def salun_loss(forget_logits: Tensor, drawn: Tensor, retain_logits: Tensor, labels: Tensor, alpha: float) -> Tensor:
    """CE(D_f, y′) + α·CE(D_r) [Fan et al. 2024, Eq. (5)]."""
    return F.cross_entropy(forget_logits, drawn) + alpha * F.cross_entropy(retain_logits, labels)


@dataclass(frozen=True)
class SalUn(WeightChange):
    """θ = m ⊙ θ + (1 − m) ⊙ θ₀ with m = 1(|∇L_f(θ₀)| ≥ γ), L = CE(D_f, y′) + α·CE(D_r) [Fan et al. 2024].

    L_f = −CE(D_f); γ is the median of the gradient, so half of the weights may change; α = 1; 10 epochs of SGD, batches
    of 256, the learning rate searched between 5e-4 and 5e-2 (App. C). BatchNorm stays as it is.
    """

    steps: Steps = field(default_factory=lambda: Steps(epochs=10, learning_rate=1e-2))
    share: float = 0.5
    """The share of the weights that may change."""
    alpha: float = 1.0

    name: ClassVar[str] = "SalUn"
    paper: ClassVar[str] = "Fan et al. 2024"

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise RequestError(f"`share` must be above 0, at most 1, got {self.share!r}.", where="SalUn")
        if self.alpha < 0:
            raise RequestError(f"`alpha` must be at least 0, got {self.alpha!r}.", where="SalUn")

    def trials(self) -> Iterator[Self]:
        """Three learning rates with two shares."""
        for share in (0.5, 0.2):
            for rate in (1e-3, 1e-2, 5e-2):
                yield replace(self, share=share, steps=replace(self.steps, learning_rate=rate))

    def change(self, work: Work) -> None:
        """One pass over the forget set for the mask, then passes over both sets."""
        steps, size = self.steps, self.steps.batch_size
        drawn = drawn_labels(work)
        parameters = trainable(work.model.module)
        start = [parameter.detach().clone() for parameter in parameters]
        masks = saliency_masks(_gradients(work, size), self.share)
        work.facts["share_of_weights"] = sum(int(m.sum()) for m in masks) / sum(m.numel() for m in masks)

        @torch.no_grad()
        def keep_the_others() -> None:  # also from momentum and weight decay
            for parameter, mask, before in zip(parameters, masks, start, strict=True):
                parameter.copy_(torch.where(mask, parameter, before))

        part, count = max(1, size // FORGET_PART), steps.epochs * work.steps_of_retain(size)
        descent = Descent(work, steps, count, after=keep_the_others)

        def loss(kept: Tensor, labels: Tensor, gone: Tensor, wrong: Tensor) -> Tensor:
            of_kept, of_gone = work.logits_of_both(kept, gone)
            return salun_loss(of_gone, wrong, of_kept, labels, self.alpha)

        for epoch in range(1, steps.epochs + 1):
            for forget, retain in work.both(part, size, epoch, steps.augmentation):
                wrong = drawn[forget.positions.to(work.device)]
                descent.step(loss, *retain[:2], forget.images, wrong)
            descent.end_of(f"epoch {epoch}")


def _gradients(work: Work, size: int) -> list[Tensor]:
    """∇L_f(θ₀) over the whole forget set."""
    parameters = trainable(work.model.module)
    total = [torch.zeros_like(parameter) for parameter in parameters]
    for batch in work.in_order(work.splits.forget, size):
        loss = ascent_loss(work.logits(batch.images), batch.labels) * len(batch.labels)
        for sum_, gradient in zip(total, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True):
            if gradient is not None:
                sum_ += gradient
    return total
