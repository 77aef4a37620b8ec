"""The paper's five metrics [FAMR, Sec. 4]: natural logarithms, one value an image.

Ret-Acc and For-Acc are means of `correct` on two sets of images; CE, Ent and KL are means on the forget set.
"""

from __future__ import annotations

import torch
from torch import Tensor

from famr.losses.objective import at_least_float32


def correct(logits: Tensor, labels: Tensor) -> Tensor:
    """1 where the most likely class is the labelled one, else 0.

    >>> correct(torch.tensor([[2.0, 1.0], [2.0, 1.0]]), torch.tensor([0, 1]))
    tensor([1., 0.])
    """
    return (logits.argmax(dim=-1) == labels).float()


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """−log p_y. At a uniform answer over C classes it is ln C.

    >>> cross_entropy(torch.zeros(1, 100), torch.tensor([7]))
    tensor([4.6052])
    """
    return -torch.log_softmax(at_least_float32(logits), dim=-1).gather(-1, labels[:, None]).squeeze(-1)


def entropy(logits: Tensor) -> Tensor:
    """−Σ p log p. At a uniform answer over C classes it is ln C.

    >>> entropy(torch.zeros(1, 100))
    tensor([4.6052])
    """
    surprise: Tensor = torch.special.entr(torch.softmax(at_least_float32(logits), dim=-1)).sum(dim=-1)
    return surprise


def kl_divergence(original_logits: Tensor, logits: Tensor) -> Tensor:
    """KL(p_θ₀ ‖ p_θ): how far the answers have moved from those of the original.

    The paper says "between the logits" and names no direction; this is the KL of the softmax outputs.

    >>> bool(kl_divergence(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 2.0]])).abs() < 1e-7)
    True
    """
    log_p0 = torch.log_softmax(at_least_float32(original_logits), dim=-1)
    log_p = torch.log_softmax(at_least_float32(logits), dim=-1)
    return (log_p0.exp() * (log_p0 - log_p)).sum(dim=-1).clamp(min=0.0)  # rounding may fall below
