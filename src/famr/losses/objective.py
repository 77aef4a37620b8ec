"""The paper's objective as pure functions of tensors [FAMR, Eq. (1)–(5)].

    J(θ) = L_forget(θ) + (λ/2)‖θ − θ₀‖²          L_forget = α·L_KL + β·L_style

A loss is one value per image; `reduce` makes it the paper's sum over images, or a mean.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor

Reduction = Literal["sum", "mean"]


def at_least_float32(tensor: Tensor) -> Tensor:
    """Promote half precision to float32: logarithms and sums of squares need it.

    Args:
        tensor: Of any floating-point type; float32 and float64 are returned as they are.

    >>> at_least_float32(torch.ones(1, dtype=torch.bfloat16)).dtype, at_least_float32(torch.ones(1).double()).dtype
    (torch.float32, torch.float64)
    """
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def uniform_target(classes: int) -> Tensor:
    """The uniform distribution u = [1/C, …, 1/C], the paper's target on the forget set.

    Args:
        classes: C, the number of classes.

    >>> uniform_target(4)
    tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """
    return torch.full((classes,), 1.0 / classes)


def target_kl(logits: Tensor, target: Tensor) -> Tensor:
    """KL(q ‖ p_θ) of each image, with p_θ = softmax(logits) [FAMR, Eq. (2) with q = u].

    Its gradient in the logits is p_θ − q.

    Args:
        logits: (batch, classes).
        target: q, one distribution (classes,) or one per image (batch, classes).

    Returns:
        (batch,), at least float32.

    >>> p, q = torch.tensor([[0.75, 0.25]]), torch.tensor([0.5, 0.5])
    >>> bool(torch.isclose(target_kl(p.log(), q), torch.tensor(0.5 * math.log(4 / 3))))
    True
    """
    log_p = torch.log_softmax(at_least_float32(logits), dim=-1)  # (batch, classes)
    target = target.to(log_p)
    divergence: Tensor = (torch.special.xlogy(target, target) - target * log_p).sum(dim=-1)
    return divergence


def logit_excess(logits: Tensor, forgotten: Tensor) -> Tensor:
    """Σ_f max(0, z_f − z_¼)² of each image: how far the logits of forgotten classes f exceed the lowest quarter.

    z_¼ is the logit that a quarter of the remaining classes lie at or below; no gradient passes through it. A network
    that never saw a class has its logit there, whatever the image; KL alone is content when the class is second.

    Args:
        logits: (batch, classes).
        forgotten: Indices of the forgotten classes.

    Returns:
        (batch,), at least float32.

    >>> logits = torch.tensor([[3.0, 9.0, 1.0, 2.0, 4.0], [0.0, 9.0, 1.0, 2.0, 4.0]])
    >>> logit_excess(logits, torch.tensor([0]))
    tensor([4., 0.])
    """
    logits = at_least_float32(logits)
    remaining = logits.shape[-1] - len(forgotten)
    ranked = logits.detach().index_fill(-1, forgotten, torch.inf).sort(dim=-1).values  # forgotten classes come last
    quartile = ranked[..., (remaining - 1) // 4, None]
    return (logits.index_select(-1, forgotten) - quartile).clamp(min=0).square().sum(dim=-1)


def log_odds(logits: Tensor, these: Tensor, others: Tensor) -> Tensor:
    """log Σ p over some classes − log Σ p over others, of each image.

    Args:
        logits: (batch, classes).
        these: Which classes, (batch, classes).
        others: Against which, (batch, classes).

    Returns:
        (batch,), at least float32.

    >>> logits = torch.tensor([[0.9, 0.05, 0.04, 0.01]]).log()
    >>> log_odds(logits, torch.tensor([[1, 0, 0, 0]]).bool(), torch.tensor([[0, 1, 1, 0]]).bool()).exp()
    tensor([10.])
    """
    logits = at_least_float32(logits)
    sums = [logits.masked_fill(~part, -torch.inf).logsumexp(dim=-1) for part in (these, others)]
    return sums[0] - sums[1]


def gram_matrix(features: Tensor) -> Tensor:
    """G_φ(x) = φ(x) φ(x)ᵀ of each image [FAMR, Eq. (3)].

    Args:
        features: φ, (batch, channels, positions).

    Returns:
        (batch, channels, channels), at least float32.

    >>> gram_matrix(torch.tensor([[[1.0, 2.0], [0.0, 1.0]]]))
    tensor([[[5., 2.],
             [2., 1.]]])
    """
    features = at_least_float32(features)
    return features @ features.mT


def style_distance(gram: Tensor, gram_target: Tensor) -> Tensor:
    """‖G_φ(x) − G_target‖²_F of each image [FAMR, Eq. (4)].

    Args:
        gram: G_φ, (batch, channels, channels).
        gram_target: G_target, (channels, channels).

    Returns:
        (batch,).

    >>> style_distance(torch.ones(1, 2, 2), torch.zeros(2, 2))
    tensor([4.])
    """
    return (gram - gram_target).square().sum(dim=(-2, -1))


def reduce(values: Tensor, reduction: Reduction) -> Tensor:
    """The sum over images, as the paper writes it, or their mean.

    Args:
        values: One value per image, (batch,).
        reduction: `sum` or `mean`.

    >>> reduce(torch.tensor([1.0, 3.0]), "sum"), reduce(torch.tensor([1.0, 3.0]), "mean")
    (tensor(4.), tensor(2.))
    """
    return values.sum() if reduction == "sum" else values.mean()


def combine(kl: Tensor, style: Tensor | None, alpha: float, beta: float) -> Tensor:
    """L_forget = α·L_KL + β·L_style [FAMR, Eq. (5)].

    Args:
        kl: L_KL, a scalar.
        style: L_style, a scalar; None where no style is forgotten.
        alpha: α ≥ 0.
        beta: β ≥ 0; without effect where `style` is None.

    >>> combine(torch.tensor(2.0), torch.tensor(3.0), alpha=1.0, beta=0.5)
    tensor(3.5000)
    """
    return alpha * kl if style is None else alpha * kl + beta * style


def l2_penalty(parameters: Iterable[Tensor], original: Iterable[Tensor]) -> Tensor:
    """½‖θ − θ₀‖², the anchor of [FAMR, Eq. (1)] without its strength λ.

    Args:
        parameters: θ, tensor by tensor.
        original: θ₀, in the same order and of the same shapes.

    Returns:
        A scalar without a graph.

    >>> l2_penalty([torch.tensor([1.0, 3.0])], [torch.tensor([0.0, 1.0])])
    tensor(2.5000)
    """
    squares = [(p.detach() - p0).square().sum() for p, p0 in zip(parameters, original, strict=True)]
    return 0.5 * torch.stack(squares).sum()


def drift_bound(loss_original: float, loss_unlearned: float, strength: float) -> float | None:
    """√(2(L_forget(θ₀) − L_forget(θ))/λ) ≥ ‖θ − θ₀‖ wherever J(θ) ≤ J(θ₀) [FAMR, App. Prop. 1].

    Args:
        loss_original: L_forget(θ₀).
        loss_unlearned: L_forget(θ).
        strength: λ.

    Returns:
        The bound; None without an anchor (λ ≤ 0) or where the loss rose.

    >>> drift_bound(10.0, 2.0, strength=4.0)
    2.0
    """
    if strength <= 0 or loss_unlearned > loss_original:
        return None
    return math.sqrt(2 * (loss_original - loss_unlearned) / strength)
