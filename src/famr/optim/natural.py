"""The step in the anchor's own metric, as long as the loss itself says.

    θ ← θ − η · L/(gᵀPg) · P g          g = ∇L_forget + Σ λ∇A over the answers held,  P = (I + sF)⁻¹

P shrinks the directions on which retained answers depend (F is their Fisher information, s the strength) and leaves
the others free: the natural gradient of the retained answers. L/(gᵀPg) is the step after which L would be zero if it
were linear [Polyak]; so η = 1/2 means half of it, whatever the network's scale. The anchor is here the metric of the
step, not a penalty: s = 0 is the plain gradient. η falls along a cosine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from famr.anchors import AnchorTerm, KFACAnchor, WeightAnchor
from famr.errors import RequestError

FLATTEST = 1e-12


def cosine(step: int, steps: int) -> float:
    """1 in the first step, falling to nearly 0 in the last.

    >>> [round(cosine(step, 4), 3) for step in (0, 1, 2, 3)]
    [1.0, 0.854, 0.5, 0.146]
    """
    return (1 + math.cos(math.pi * step / steps)) / 2


@torch.no_grad()
def step_length(loss: Tensor, gradient: Sequence[Tensor], direction: Sequence[Tensor]) -> Tensor:
    """L/(gᵀPg): where the loss would reach zero along −P g, were it linear.

    >>> g = [torch.tensor([3.0, 4.0])]
    >>> step_length(torch.tensor(5.0), g, g)
    tensor(0.2000)
    """
    products = torch._foreach_mul(list(gradient), list(direction))
    slope = torch.stack([product.sum() for product in products]).sum()
    return loss.detach() / slope.clamp(min=FLATTEST)


def get_ready(anchors: Sequence[AnchorTerm]) -> None:
    """Find what the metric needs for all steps, which one that is captured must find there."""
    if isinstance(anchors[0].anchor, KFACAnchor):
        anchors[0].anchor.find_eigenvectors()


def natural_step(
    parameters: Sequence[nn.Parameter],
    anchors: Sequence[AnchorTerm],
    loss: Tensor,
    rate: Tensor | float,
    about_to_move: Callable[[], None] | None = None,
) -> None:
    """One step in place; the gradient of `loss` is in the parameters. The first anchor gives the metric."""
    (metric, strength), *others = anchors
    if not isinstance(metric, WeightAnchor):
        raise RequestError("The natural step needs an anchor of the weights first.", where="optimiser")
    gradient = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    for anchor, weight in others:
        pulls = anchor.gradient(parameters)
        gradient = list(torch._foreach_add(gradient, list(pulls), alpha=weight))
    with torch.no_grad():
        direction = metric.precondition(gradient, strength)  # P g
        length = rate * step_length(loss, gradient, direction)
        steps = torch._foreach_mul(list(direction), length)
        if about_to_move is not None:
            about_to_move()
        torch._foreach_sub_(list(parameters), steps)
