"""J, the objective whose resting point a run's steps look for, as values, gradients and products.

    J(θ) = L_forget(θ) + λ·A(θ, θ₀) + λ_f·A_f(θ)

With the sum of Eq. (2) over a batch and the whole anchor in every step, Alg. 1 rests where Eq. (6) holds with λ·|T|/B
for λ. J is written in that scale: L_forget over all of T, λ multiplied by the number of batches. With the natural step
the weight anchor is the metric of the step and not a penalty, so it is not part of J.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from famr.anchors import FunctionAnchor, WeightAnchor
from famr.certificates.curvature import Product, flat, gradient, hessian_product, shaped
from famr.data.loaders import Batch
from famr.engine.oom import part_size
from famr.losses.objective import combine
from famr.metrics.forgetting import kl_divergence
from famr.unlearn.forget_loss import ForgetLoss, Passes

MICRO_BATCH = 32


@dataclass(frozen=True, eq=False)
class RestingObjective:
    """J at wherever the network's weights now are."""

    loss: ForgetLoss
    passes: Passes
    parameters: list[nn.Parameter]
    start: Tensor  # θ₀
    penalty: WeightAnchor | None
    """The weight anchor, where it is a penalty."""
    strength: float
    """λ in the scale of Eq. (1); 0 without a penalty."""
    held: FunctionAnchor | None
    held_strength: float

    @property
    def moved(self) -> Tensor:
        """θ − θ₀."""
        return flat(self.parameters) - self.start

    def forget_pieces(self) -> Iterator[Tensor]:
        """L_forget over the forget set, in small batches with graphs."""
        method = self.loss.method
        count = sum(len(batch.labels) for batch in self.passes.forget(None)) if method.reduction == "mean" else 1
        for batch in self.passes.forget(None):
            for part in in_parts(batch, part_size(MICRO_BATCH, batch.images.device)):
                _, kl, style = self.loss.per_image(part)
                styles = None if style is None else style.sum()
                yield combine(kl.sum(), styles, method.alpha, method.beta or 0.0) / count

    def pieces(self) -> Iterator[Tensor]:
        """J without the penalty, which is a quadratic and needs no graph."""
        yield from self.forget_pieces()
        if self.held is not None:
            for batch, original, count in self.held.remembered():
                size = part_size(MICRO_BATCH, original.device)
                for part, said in zip(in_parts(batch, size), torch.split(original, size), strict=True):
                    divergence = kl_divergence(said, self.loss.logits(part.images))
                    yield self.held_strength * divergence.sum() / count

    def value(self) -> float:
        """J."""
        with torch.no_grad():
            total = sum(float(piece) for piece in self.pieces())
        return total + 0.5 * self.strength * float(self.moved @ self._metric(self.moved))

    def forget_value(self) -> float:
        """L_forget."""
        with torch.no_grad():
            return sum(float(piece) for piece in self.forget_pieces())

    def gradient(self) -> Tensor:
        """∇J."""
        return gradient(self.pieces, self.parameters) + self.strength * self._metric(self.moved)

    def product(self) -> Product:
        """v ↦ ∇²J v."""
        network = hessian_product(self.pieces, self.parameters)
        return lambda vector: network(vector) + self.strength * self._metric(vector)

    def forget_product(self) -> Product:
        """v ↦ ∇²L_forget v."""
        return hessian_product(self.forget_pieces, self.parameters)

    def _metric(self, vector: Tensor) -> Tensor:
        """F v of the penalty ½ΔᵀFΔ: its gradient is linear in Δ, so it is taken at θ₀ + v."""
        if self.penalty is None:
            return torch.zeros_like(vector)
        there = [nn.Parameter(piece) for piece in shaped(self.start + vector, self.parameters)]
        return flat(self.penalty.gradient(there))

    @torch.no_grad()
    def put(self, vector: Tensor) -> None:
        """Set the weights."""
        for parameter, piece in zip(self.parameters, shaped(vector, self.parameters), strict=True):
            parameter.copy_(piece)


def in_parts(batch: Batch, size: int) -> Iterator[Batch]:
    """A batch in parts small enough for second derivatives."""
    parts = (torch.split(each, size) for each in batch)
    return (Batch(*part) for part in zip(*parts, strict=True))
