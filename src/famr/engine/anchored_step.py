"""Speed: the plain step of Alg. 1 with the paper's anchor, over many weights at once.

Layer by layer it is a handful of small operations for each of them, which keeps a GPU waiting. All at once it would
need a second copy of the network, so that weights are taken in groups of a limited size; on a CPU of a small one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from famr.anchors import AnchorTerm, L2Anchor
from famr.config import FAMR
from famr.engine.grouping import IN_CACHE, groups

NO_PULL = 1e-12
"""Below it an anchor is weaker than rounding, and g/λ might leave all numbers."""


def held_plainly(method: FAMR, anchors: Sequence[AnchorTerm]) -> Sequence[Tensor] | None:
    """θ₀, where a run takes the plain step and nothing but the ℓ₂ anchor holds it; else None."""
    first = anchors[0].anchor
    return first.original if method.optimiser == "sgd" and len(anchors) == 1 and isinstance(first, L2Anchor) else None


@torch.no_grad()
def anchored_step(parameters: Sequence[nn.Parameter], original: Sequence[Tensor], rate: float, strength: float) -> None:
    """θ ← θ − ηλ·(θ − θ₀ + g/λ), in place; a weight without a gradient is only pulled."""
    if strength < NO_PULL:
        moved = [parameter for parameter in parameters if parameter.grad is not None]
        torch._foreach_add_(moved, [parameter.grad for parameter in moved], alpha=-rate)  # type: ignore[arg-type,misc]
        return
    most = IN_CACHE if parameters[0].device.type == "cpu" else None
    for group in groups([parameter.nbytes for parameter in parameters], most):
        weights: list[Tensor] = list(parameters[group])
        step = list(torch._foreach_sub(weights, list(original[group])))
        seen = [(pull, weight.grad) for pull, weight in zip(step, weights, strict=True) if weight.grad is not None]
        if seen:
            torch._foreach_add_([pull for pull, _ in seen], [slope for _, slope in seen], alpha=1 / strength)
        torch._foreach_add_(weights, step, alpha=-rate * strength)
