"""The paper's five metrics [FAMR, Sec. 4]: natural logarithms, one value per image.

Ret-Acc and For-Acc are means of `correct` on two sets of images; CE, Ent and KL are means on the forget set.
"""

from __future__ import annotations

import torch
from torch import Tensor

from famr.losses.objective import at_least_float32


def correct(logits: Tensor, labels: Tensor) -> Tensor:
    """1 where the most likely class is the label, else 0.

    Args:
        logits: (images, classes).
        labels: Class indices, (images,).

    Returns:
        (images,), as floats.

    >>> correct(torch.tensor([[2.0, 1.0], [2.0, 1.0]]), torch.tensor([0, 1]))
    tensor([1., 0.])
    """
    return (logits.argmax(dim=-1) == labels).float()


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """−log p_y; ln C for a uniform prediction over C classes.

    Args:
        logits: (images, classes).
        labels: Class indices y, (images,).

    Returns:
        (images,), in nats.

    >>> cross_entropy(torch.zeros(1, 100), torch.tensor([7]))
    tensor([4.6052])
    """
    return -torch.log_softmax(at_least_float32(logits), dim=-1).gather(-1, labels[:, None]).squeeze(-1)


def entropy(logits: Tensor) -> Tensor:
    """−Σ p log p; ln C for a uniform prediction over C classes.

    Args:
        logits: (images, classes).

    Returns:
        (images,), in nats.

    >>> entropy(torch.zeros(1, 100))
    tensor([4.6052])
    """
    entropies: Tensor = torch.special.entr(torch.softmax(at_least_float32(logits), dim=-1)).sum(dim=-1)
    return entropies


def kl_divergence(original_logits: Tensor, logits: Tensor) -> Tensor:
    """KL(p_θ₀ ‖ p_θ): how far the predictions have moved from those of the original.

    The paper says "between the logits" and names no direction; this is the KL of the softmax outputs.

    Args:
        original_logits: Of θ₀, (images, classes).
        logits: Of θ on the same images.

    Returns:
        (images,), in nats; 0 where rounding would give a negative value.

    >>> bool(kl_divergence(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 2.0]])).abs() < 1e-7)
    True
    """
    log_p0 = torch.log_softmax(at_least_float32(original_logits), dim=-1)
    log_p = torch.log_softmax(at_least_float32(logits), dim=-1)
    return (log_p0.exp() * (log_p0 - log_p)).sum(dim=-1).clamp(min=0.0)
