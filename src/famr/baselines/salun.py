"""SalUn: random labels, learned only by the weights with the largest gradients on the forget set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from famr.baselines.base import numbers
from famr.baselines.descent import ADAM, Descent, Steps
from famr.baselines.gradient_ascent import ascent_loss
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


def salun_loss(logits: Tensor, labels: Tensor, forgotten: Tensor, alpha: float) -> Tensor:
    """CE(D_f, y′) + α·CE(D_r), both as sums over their images [Fan et al. 2024, Eq. (5)], by images of the batch.

    With α = 1 it is the cross-entropy of a batch that mixes both sets, as in the authors' code for CIFAR-100.

    Args:
        logits: Of images of both sets, (batch, classes).
        labels: y′ of forget images, classes of retained images.
        forgotten: Whether an image belongs to the forget set, (batch,).
        alpha: α.

    >>> logits, labels = torch.tensor([[0.0, 2.0], [1.0, 0.0]]), torch.tensor([1, 0])
    >>> forgotten = torch.tensor([True, False])
    >>> torch.equal(salun_loss(logits, labels, forgotten, alpha=1.0), F.cross_entropy(logits, labels))
    True
    """
    losses = F.cross_entropy(logits, labels, reduction="none")
    return torch.where(forgotten, losses, alpha * losses).mean()


@dataclass(frozen=True)
class SalUn(WeightBaseline):
    """θ = m ⊙ θ + (1 − m) ⊙ θ₀ with m = 1(|∇L_f(θ₀)| ≥ γ), L = CE(D_f, y′) + α·CE(D_r) [Fan et al. 2024].

    L_f = −CE(D_f). A batch holds both sets in their proportion. BatchNorm keeps its statistics.

    Attributes:
        steps: 10 epochs, batches of 256. The authors' code has η 0.1, constant, which diverges on many networks;
            1e-2 is our choice.
        share: Share of the weights that may change; half of them, as γ is the median of the gradient in the paper.
        alpha: α, 1 in the paper.
    """

    steps: Steps = field(default_factory=lambda: Steps(epochs=10, learning_rate=1e-2))
    share: float = 0.5
    alpha: float = 1.0

    name = "SalUn"
    paper = "Fan et al. 2024"
    published = numbers(learning_rate=0.1, schedule="constant", training_mode=True)
    tuning = (
        {"learning_rate": 3e-3},
        {"share": 0.2},
        {**ADAM, "learning_rate": 1e-4},
        {**ADAM, "learning_rate": 3e-4},
    )

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
        with session.evaluation_mode():
            masks = saliency_masks(_forget_gradient(session, size), self.share)
        session.facts["share_of_weights"] = sum(int(m.sum()) for m in masks) / sum(m.numel() for m in masks)

        @torch.no_grad()
        def restore_the_rest() -> None:  # momentum and weight decay move them too
            for parameter, mask, before in zip(parameters, masks, start, strict=True):
                parameter.copy_(torch.where(mask, parameter, before))

        total = steps.epochs * session.mixed_steps(size)
        descent = Descent(session, steps, total, after=restore_the_rest)

        def loss(images: Tensor, labels: Tensor, forgotten: Tensor) -> Tensor:
            return salun_loss(session.logits(images), labels, forgotten, self.alpha)

        for epoch in descent.epochs():
            for batch in descent.within(session.mixed_batches(size, epoch, labels=wrong)):
                descent.step(loss, batch.images, batch.labels, batch.forgotten)


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
