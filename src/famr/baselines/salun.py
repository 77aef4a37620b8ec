"""SalUn: random labels, learned only by the weights with the largest gradients on the forget set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from famr.baselines.base import grid
from famr.baselines.descent import Descent, Steps
from famr.baselines.gradient_ascent import ascent_loss
from famr.baselines.neg_grad_plus import FORGET_RATIO
from famr.baselines.random_labels import draw_wrong_labels
from famr.baselines.session import BaselineSession, WeightBaseline
from famr.errors import RequestError
from famr.models.layers import trainable


def saliency_masks(gradients: Sequence[Tensor], share: float) -> list[Tensor]:
    """m = 1 for the `share` of all weights with the largest |gradient|, over all layers together; exactly so many.

    Args:
        gradients: ∇L_f(θ₀), one tensor a parameter.
        share: Of the weights that may change, in (0, 1].

    >>> saliency_masks([torch.tensor([3.0, -4.0]), torch.tensor([[1.0], [0.5]])], share=0.5)
    [tensor([True, True]), tensor([[False],
            [False]])]
    """
    flat = torch.cat([gradient.abs().flatten() for gradient in gradients])
    chosen = torch.zeros_like(flat, dtype=torch.bool)
    chosen[torch.topk(flat, round(share * len(flat))).indices] = True
    parts = torch.split(chosen, [gradient.numel() for gradient in gradients])
    return [part.view_as(gradient) for part, gradient in zip(parts, gradients, strict=True)]


def salun_loss(forget_logits: Tensor, wrong: Tensor, retain_logits: Tensor, labels: Tensor, alpha: float) -> Tensor:
    """CE(D_f, y′) + α·CE(D_r) [Fan et al. 2024, Eq. (5)].

    Args:
        forget_logits: Of forget images, (forget batch, classes).
        wrong: Their drawn labels y′.
        retain_logits: Of retained images, (retain batch, classes).
        labels: Their classes.
        alpha: α.
    """
    return F.cross_entropy(forget_logits, wrong) + alpha * F.cross_entropy(retain_logits, labels)


@dataclass(frozen=True)
class SalUn(WeightBaseline):
    """θ = m ⊙ θ + (1 − m) ⊙ θ₀ with m = 1(|∇L_f(θ₀)| ≥ γ), L = CE(D_f, y′) + α·CE(D_r) [Fan et al. 2024].

    L_f = −CE(D_f). BatchNorm keeps its statistics.

    Attributes:
        steps: 10 epochs, batches of 256, η searched between 5e-4 and 5e-2 [Fan et al. 2024, App. C].
        share: Share of the weights that may change; half of them, as γ is the median of the gradient in the paper.
        alpha: α, 1 in the paper.
    """

    steps: Steps = field(default_factory=lambda: Steps(epochs=10, learning_rate=1e-2))
    share: float = 0.5
    alpha: float = 1.0

    name = "SalUn"
    paper = "Fan et al. 2024"
    tuning = grid(share=(0.5, 0.2), learning_rate=(1e-3, 1e-2, 5e-2))

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise RequestError(f"`share` must be above 0, at most 1, got {self.share!r}.", where="SalUn")
        if self.alpha < 0:
            raise RequestError(f"`alpha` must be at least 0, got {self.alpha!r}.", where="SalUn")

    def change(self, session: BaselineSession) -> None:
        """See `WeightBaseline.change`: one pass over the forget set for the mask, then steps on both sets."""
        steps, size = self.steps, self.steps.batch_size
        wrong = draw_wrong_labels(session)
        parameters = trainable(session.model.module)
        start = [parameter.detach().clone() for parameter in parameters]
        masks = saliency_masks(_forget_gradient(session, size), self.share)
        session.facts["share_of_weights"] = sum(int(m.sum()) for m in masks) / sum(m.numel() for m in masks)

        @torch.no_grad()
        def restore_the_rest() -> None:  # momentum and weight decay move them too
            for parameter, mask, before in zip(parameters, masks, start, strict=True):
                parameter.copy_(torch.where(mask, parameter, before))

        forget_size, total = max(1, size // FORGET_RATIO), steps.epochs * session.retain_steps(size)
        descent = Descent(session, steps, total, after=restore_the_rest)

        def loss(retain: Tensor, labels: Tensor, forget: Tensor, drawn: Tensor) -> Tensor:
            logits = session.logits(torch.cat([retain, forget]))  # one pass is faster than two on a GPU
            retain_logits, forget_logits = torch.split(logits, [len(retain), len(forget)])
            return salun_loss(forget_logits, drawn, retain_logits, labels, self.alpha)

        for epoch in descent.epochs():
            for forget, retain in session.paired_batches(forget_size, size, epoch, labels=wrong):
                descent.step(loss, retain.images, retain.labels, forget.images, forget.labels)


def _forget_gradient(session: BaselineSession, size: int) -> list[Tensor]:
    """∇L_f(θ₀) over the whole forget set, one tensor a parameter."""
    parameters = trainable(session.model.module)
    total = [torch.zeros_like(parameter) for parameter in parameters]
    for batch in session.batches(session.forget, size):
        loss = ascent_loss(session.logits(batch.images), batch.labels) * len(batch.labels)
        for sum_, gradient in zip(total, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True):
            if gradient is not None:
                sum_ += gradient
    return total
