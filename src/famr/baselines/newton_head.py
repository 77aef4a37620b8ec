"""One Newton step on the linear head, over features that stay as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from famr.baselines.work import WeightChange, Work
from famr.certificates.conjugate_gradient import Solution, conjugate_gradient
from famr.data import Images
from famr.errors import NumericsError, RequestError
from famr.models.layers import head_name

TOLERANCE, STEPS = 1e-6, 2000


def softmax_gradient(weights: Tensor, features: Tensor, labels: Tensor) -> Tensor:
    """Σ ∇CE in the weights (classes, width) of a softmax head."""
    answers = torch.softmax(features @ weights.mT, dim=-1)
    return (answers - F.one_hot(labels, len(weights)).to(answers)).mT @ features


def softmax_hessian_product(weights: Tensor, features: Tensor) -> Callable[[Tensor], Tensor]:
    """v ↦ Hv, H the Hessian of Σ CE in the weights; labels do not enter. v is flat."""
    answers = torch.softmax(features @ weights.mT, dim=-1)  # (images, classes)

    def product(v: Tensor) -> Tensor:
        along = features @ v.view_as(weights).mT
        bent = answers * along
        return ((bent - answers * bent.sum(dim=-1, keepdim=True)).mT @ features).flatten()

    return product


def newton_removal(removed_gradient: Tensor, left_product: Callable[[Tensor], Tensor], damping: float) -> Solution:
    """Δ = +(H_left + δI)⁻¹ Σ_removed ∇ℓ: where the minimiser goes without the removed images; exact for quadratic
    losses [Guo et al. 2020; Sekhari et al. 2021]."""
    flat = removed_gradient.flatten()
    found = conjugate_gradient(left_product, flat, damping=damping, tolerance=TOLERANCE, steps=STEPS)
    if not found.converged:
        raise NumericsError(
            f"The Newton step was not solved: the residual is still {found.residual:.1e}.",
            fix="Raise the strength.",
        )
    return found


@dataclass(frozen=True)
class NewtonHead(WeightChange):
    """W ← W + (H_r + λ|D_r|·I)⁻¹ Σ_f ∇CE on the last linear layer [Guo et al. 2020], then noise of width σ on it
    [Sekhari et al. 2021].

    λ = 1e-3, in the range that Guo et al. study; σ = 0. Both papers prove removal for convex models at their minimum,
    which the head of a deep network is not: without that this is an influence step, and nothing is certified.
    `famr.certificates.convex_head` is the certified way. Only the head changes.
    """

    strength: float = 1e-3
    """λ, for each retained image."""
    noise: float = 0.0
    """σ."""

    name: ClassVar[str] = "Newton step on the head"
    paper: ClassVar[str] = "Guo et al. 2020"

    def __post_init__(self) -> None:
        if not self.strength > 0:
            raise RequestError(f"`strength` must be above 0, got {self.strength!r}.", where="NewtonHead")
        if self.noise < 0:
            raise RequestError(f"`noise` must be at least 0, got {self.noise!r}.", where="NewtonHead")

    def trials(self) -> Iterator[Self]:
        """Six λ."""
        for strength in (1.0, 1e-1, 3e-2, 1e-2, 1e-3, 1e-4):
            yield replace(self, strength=strength)

    def change(self, work: Work) -> None:
        """One pass over all images for their features, then one linear system in double precision."""
        head = work.model.module.get_submodule(head_name(work.model))
        assert isinstance(head, nn.Linear)
        left, gone = _features(work, head, work.retained.images), _features(work, head, work.splits.forget)
        weights = _joined(head).to(left)
        gradient = softmax_gradient(weights, gone, work.splits.forget.targets.to(gone.device))
        step = newton_removal(gradient, softmax_hessian_product(weights, left), self.strength * len(left))
        moved = weights + step.x.view_as(weights)
        moved += self.noise * torch.randn(moved.shape, generator=work.draws(), dtype=moved.dtype).to(moved)
        with torch.no_grad():
            head.weight.copy_(moved[:, : head.in_features])
            if head.bias is not None:
                head.bias.copy_(moved[:, -1])
        work.facts.update(residual=step.residual, solver_steps=step.steps, length=float(step.x.norm()))


def _joined(head: nn.Linear) -> Tensor:
    """Weights and bias side by side, (classes, width [+ 1])."""
    parts = [head.weight] if head.bias is None else [head.weight, head.bias[:, None]]
    return torch.cat([part.detach() for part in parts], dim=1)


@torch.no_grad()
def _features(work: Work, head: nn.Linear, images: Images) -> Tensor:
    """What goes into the head, in double precision, with a one for the bias."""
    rows: list[Tensor] = []
    place = work.device if work.device.type == "cuda" else torch.device("cpu")  # where there are doubles

    def note(_head: nn.Module, given: tuple[Tensor, ...]) -> None:
        one = torch.ones(len(given[0]), 0 if head.bias is None else 1, dtype=torch.float64, device=place)
        rows.append(torch.cat([given[0].to(place, torch.float64), one], dim=1))

    handle = head.register_forward_pre_hook(note)
    try:
        for batch in work.in_order(images):
            work.logits(batch.images)
    finally:
        handle.remove()
    return torch.cat(rows)
