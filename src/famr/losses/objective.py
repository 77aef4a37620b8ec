"""The objective of the paper as pure functions of tensors [FAMR, Eq. (1)–(5)].

    J(θ) = L_forget(θ) + (λ/2)‖θ − θ₀‖²          L_forget = α·L_KL + β·L_style

Losses come one value an image; `reduce` turns them into the paper's sum, or into a mean.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor

Reduction = Literal["sum", "mean"]


def at_least_float32(tensor: Tensor) -> Tensor:
    """Half precision is good enough for a network, not for logarithms and sums of squares.

    >>> at_least_float32(torch.ones(1, dtype=torch.bfloat16)).dtype, at_least_float32(torch.ones(1).double()).dtype
    (torch.float32, torch.float64)
    """
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def uniform_target(classes: int) -> Tensor:
    """u = [1/C, …, 1/C]: what the paper wants the model to answer on the forget set.

    >>> uniform_target(4)
    tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """
    return torch.full((classes,), 1.0 / classes)


def target_kl(logits: Tensor, target: Tensor) -> Tensor:
    """KL(q ‖ p_θ) of each image, p_θ = softmax(logits), q = `target` [FAMR, Eq. (2) with q = u].

    Its gradient in the logits is p − q. `target` is one distribution (classes,) or one an image.

    >>> p, q = torch.tensor([[0.75, 0.25]]), torch.tensor([0.5, 0.5])
    >>> bool(torch.isclose(target_kl(p.log(), q), torch.tensor(0.5 * math.log(4 / 3))))
    True
    """
    log_p = torch.log_softmax(at_least_float32(logits), dim=-1)  # (batch, classes)
    target = target.to(log_p)
    divergence: Tensor = (torch.special.xlogy(target, target) - target * log_p).sum(dim=-1)
    return divergence


def standing_out(logits: Tensor, forgotten: Tensor) -> Tensor:
    """Σ_f max(0, z_f − z_¼)² of each image: how far forgotten classes f stand above the least likely quarter.

    z_¼ is the logit that a quarter of the other classes lie below; it is a mark, not something to be moved. A class
    that a model never saw lies there, whatever the image; to be never answered a class need only be second.

    >>> logits = torch.tensor([[3.0, 9.0, 1.0, 2.0, 4.0], [0.0, 9.0, 1.0, 2.0, 4.0]])
    >>> standing_out(logits, torch.tensor([0]))
    tensor([4., 0.])
    """
    logits = at_least_float32(logits)
    others = logits.shape[-1] - len(forgotten)
    ranked = logits.detach().index_fill(-1, forgotten, torch.inf).sort(dim=-1).values  # the forgotten ones come last
    mark = ranked[..., (others - 1) // 4, None]
    return (logits.index_select(-1, forgotten) - mark).clamp(min=0).square().sum(dim=-1)


def gram_matrix(features: Tensor) -> Tensor:
    """G_φ(x) = φ(x) φ(x)ᵀ of each image [FAMR, Eq. (3)].

    `features` φ is (batch, channels, positions); the result is (batch, channels, channels).

    >>> gram_matrix(torch.tensor([[[1.0, 2.0], [0.0, 1.0]]]))
    tensor([[[5., 2.],
             [2., 1.]]])
    """
    features = at_least_float32(features)
    return features @ features.mT


def style_distance(gram: Tensor, gram_target: Tensor) -> Tensor:
    """‖G_φ(x) − G_target‖²_F of each image [FAMR, Eq. (4)].

    >>> style_distance(torch.ones(1, 2, 2), torch.zeros(2, 2))
    tensor([4.])
    """
    return (gram - gram_target).square().sum(dim=(-2, -1))


def reduce(values: Tensor, reduction: Reduction) -> Tensor:
    """Σ over the images, as the paper writes it, or their mean.

    >>> reduce(torch.tensor([1.0, 3.0]), "sum"), reduce(torch.tensor([1.0, 3.0]), "mean")
    (tensor(4.), tensor(2.))
    """
    return values.sum() if reduction == "sum" else values.mean()


def combine(kl: Tensor, style: Tensor | None, alpha: float, beta: float) -> Tensor:
    """L_forget = α·L_KL + β·L_style [FAMR, Eq. (5)].

    >>> combine(torch.tensor(2.0), torch.tensor(3.0), alpha=1.0, beta=0.5)
    tensor(3.5000)
    """
    return alpha * kl if style is None else alpha * kl + beta * style


def l2_penalty(parameters: Iterable[Tensor], original: Iterable[Tensor]) -> Tensor:
    """½‖θ − θ₀‖², the anchor of [FAMR, Eq. (1)] before its strength λ.

    >>> l2_penalty([torch.tensor([1.0, 3.0])], [torch.tensor([0.0, 1.0])])
    tensor(2.5000)
    """
    squares = [(p.detach() - p0).square().sum() for p, p0 in zip(parameters, original, strict=True)]
    return 0.5 * torch.stack(squares).sum()


def drift_bound(loss_original: float, loss_unlearned: float, strength: float) -> float | None:
    """√(2(L_forget(θ₀) − L_forget(θ))/λ) ≥ ‖θ − θ₀‖ wherever J(θ) ≤ J(θ₀) [FAMR, App. Prop. 1].

    None where there is no bound: without an anchor, or where the forgetting loss rose.

    >>> drift_bound(10.0, 2.0, strength=4.0)
    2.0
    """
    if strength <= 0 or loss_unlearned > loss_original:
        return None
    return math.sqrt(2 * (loss_original - loss_unlearned) / strength)
