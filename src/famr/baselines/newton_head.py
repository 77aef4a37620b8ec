"""One Newton step on the linear head, on fixed features."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from famr.baselines.session import BaselineSession, WeightBaseline
from famr.certificates.conjugate_gradient import Solution, conjugate_gradient
from famr.data import Images
from famr.errors import NumericsError, RequestError
from famr.models.layers import head_name

TOLERANCE = 1e-6
"""Relative residual at which conjugate gradients stop."""
MAX_SOLVER_STEPS = 2000


def softmax_gradient(weights: Tensor, features: Tensor, labels: Tensor) -> Tensor:
    """Σ ∇CE = Σ (p − y) xᵀ of a softmax head.

    Args:
        weights: W, (classes, width).
        features: x, (images, width).
        labels: Class indices, (images,).

    Returns:
        (classes, width).
    """
    p = torch.softmax(features @ weights.mT, dim=-1)
    return (p - F.one_hot(labels, len(weights)).to(p)).mT @ features


def softmax_hessian_product(weights: Tensor, features: Tensor) -> Callable[[Tensor], Tensor]:
    """v ↦ Hv, H = Σ (diag(p) − ppᵀ) ⊗ xxᵀ the Hessian of Σ CE in W.

    Args:
        weights: W, (classes, width).
        features: x, (images, width).

    Returns:
        A function of a flat v, (classes · width,).
    """
    p = torch.softmax(features @ weights.mT, dim=-1)  # (images, classes)

    def product(v: Tensor) -> Tensor:
        weighted = p * (features @ v.view_as(weights).mT)
        return ((weighted - p * weighted.sum(dim=-1, keepdim=True)).mT @ features).flatten()

    return product


def newton_removal(removed_gradient: Tensor, retain_product: Callable[[Tensor], Tensor], damping: float) -> Solution:
    """Δ = (H_r + δI)⁻¹ Σ_f ∇ℓ: how the minimiser moves without the removed images.

    Exact for quadratic losses [Guo et al. 2020; Sekhari et al. 2021].

    Args:
        removed_gradient: Σ_f ∇ℓ at the minimiser.
        retain_product: v ↦ H_r v.
        damping: δ.

    Raises:
        NumericsError: Conjugate gradients did not converge.
    """
    flat = removed_gradient.flatten()
    solution = conjugate_gradient(retain_product, flat, damping=damping, tolerance=TOLERANCE, steps=MAX_SOLVER_STEPS)
    if not solution.converged:
        raise NumericsError(
            f"The Newton step did not converge: the relative residual is {solution.residual:.1e}, it must be at most "
            f"{2 * TOLERANCE:.0e}.",
            fix="Raise the strength.",
        )
    return solution


@dataclass(frozen=True)
class NewtonHead(WeightBaseline):
    """W ← W + (H_r + λ|D_r|·I)⁻¹ Σ_f ∇CE on the last linear layer [Guo et al. 2020], then noise [Sekhari et al. 2021].

    Both papers prove removal for convex models at their minimum. The head of a deep network is not at one: this is an
    influence step, and nothing is certified. `famr.certificates.convex_head` is the certified way.

    Attributes:
        strength: λ, for each retained image; our choice, in the range that Guo et al. study.
        noise: Standard deviation of Gaussian noise added to the head; none by default.
    """

    strength: float = 1e-3
    noise: float = 0.0

    name = "Newton step on the head"
    paper = "Guo et al. 2020"
    tuning = tuple({"strength": strength} for strength in (1.0, 1e-1, 3e-2, 1e-2, 1e-4))

    def __post_init__(self) -> None:
        if not self.strength > 0:
            raise RequestError(f"`strength` must be above 0, got {self.strength!r}.", where="NewtonHead")
        if self.noise < 0:
            raise RequestError(f"`noise` must be at least 0, got {self.noise!r}.", where="NewtonHead")

    def change(self, session: BaselineSession) -> None:
        """See `WeightBaseline.change`: a pass over all images for their features, then one linear system in float64."""
        head = session.model.module.get_submodule(head_name(session.model))
        assert isinstance(head, nn.Linear)
        retain, forget = _features(session, head, session.retain), _features(session, head, session.forget)
        weights = _weights_and_bias(head).to(retain)
        gradient = softmax_gradient(weights, forget, session.forget.targets.to(forget.device))
        step = newton_removal(gradient, softmax_hessian_product(weights, retain), self.strength * len(retain))
        moved = weights + step.x.view_as(weights)
        moved += self.noise * torch.randn(moved.shape, generator=session.generator(), dtype=moved.dtype).to(moved)
        with torch.no_grad():
            head.weight.copy_(moved[:, : head.in_features])
            if head.bias is not None:
                head.bias.copy_(moved[:, -1])
        session.facts.update(residual=step.residual, solver_steps=step.steps, length=float(step.x.norm()))


def _weights_and_bias(head: nn.Linear) -> Tensor:
    """(classes, width), one wider with a bias."""
    parts = [head.weight] if head.bias is None else [head.weight, head.bias[:, None]]
    return torch.cat([part.detach() for part in parts], dim=1)


@torch.no_grad()
def _features(session: BaselineSession, head: nn.Linear, images: Images) -> Tensor:
    """Inputs of the head in float64, with a column of ones for the bias."""
    rows: list[Tensor] = []
    device = session.device if session.device.type == "cuda" else torch.device("cpu")  # not every device has float64

    def record(_head: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        features = inputs[0].to(device, torch.float64)
        rows.append(
            features if head.bias is None else torch.cat([features, features.new_ones(len(features), 1)], dim=1)
        )

    handle = head.register_forward_pre_hook(record)
    try:
        for batch in session.batches(images):
            session.logits(batch.images)
    finally:
        handle.remove()
    return torch.cat(rows)
