"""Log-odds of the true class."""

from __future__ import annotations

import torch
from torch import Tensor

from famr.losses.objective import at_least_float32


def margins(logits: Tensor, labels: Tensor) -> Tensor:
    """z_y − log Σ_{k≠y} exp z_k of each image: the log-odds of the true class.

    Args:
        logits: (images, classes).
        labels: (images,).

    >>> margins(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
    tensor([2.])
    """
    logits = at_least_float32(logits)
    remaining = logits.scatter(-1, labels[:, None], -torch.inf).logsumexp(dim=-1)
    return logits.gather(-1, labels[:, None])[:, 0] - remaining
