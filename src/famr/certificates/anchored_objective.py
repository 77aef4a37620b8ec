"""J, the objective whose stationary point a run approaches: its value, gradient and Hessian products.

    J(θ) = L_forget(θ) + λ·A(θ, θ₀) + λ_f·A_f(θ)

With the sum of Eq. (2) over a batch and the whole anchor in every step, Alg. 1 is stationary where Eq. (6) holds with
λ·|T|/B for λ. J is written in that scale: L_forget over all of T, λ multiplied by the number of batches. With the
natural step the weight anchor is the metric of the step and not a penalty, so it is not part of J.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from famr.anchors import FunctionAnchor, WeightAnchor
from famr.certificates.curvature import Product, flat, gradient, hessian_product, shaped
from famr.data.loaders import Batch
from famr.engine.oom import derivative_batch_size
from famr.losses.objective import combine
from famr.metrics.forgetting import kl_divergence
from famr.optim import OPTIMISERS
from famr.unlearn.problem import Problem

MICRO_BATCH = 32
"""Images whose second derivatives fit on any device; see `derivative_batch_size`."""


@dataclass(frozen=True, eq=False)
class AnchoredObjective:
    """J of a run, at whatever weights the network now has.

    Attributes:
        problem: Terms and data of J.
        start: θ₀, flat.
        penalty: The weight anchor where it is a penalty; None where it is the metric of the step, or has strength 0.
        strength: λ in the scale of Eq. (1); 0 without a penalty.
        function_anchor: The function-space anchor; None without one.
        function_strength: Its λ in the same scale.
    """

    problem: Problem
    start: Tensor
    penalty: WeightAnchor | None
    strength: float
    function_anchor: FunctionAnchor | None
    function_strength: float

    @classmethod
    def of(cls, problem: Problem) -> AnchoredObjective:
        """J of a run.

        Args:
            problem: The run's problem; its network has the original weights.
        """
        config, (weight_term, *further) = problem.config, problem.anchors
        scale = problem.steps_per_epoch if config.reduction == "sum" else 1
        penalised = not OPTIMISERS[config.optimiser].uses_metric and weight_term.strength > 0
        assert isinstance(weight_term.anchor, WeightAnchor)
        function_anchor, function_strength = None, 0.0
        if further:
            assert isinstance(further[0].anchor, FunctionAnchor)
            function_anchor, function_strength = further[0].anchor, further[0].strength * scale
        return cls(
            problem=problem,
            start=flat(problem.session.parameters),
            penalty=weight_term.anchor if penalised else None,
            strength=weight_term.strength * scale if penalised else 0.0,
            function_anchor=function_anchor,
            function_strength=function_strength,
        )

    @property
    def parameters(self) -> list[nn.Parameter]:
        """θ: the parameters that may change."""
        return self.problem.session.parameters

    @property
    def moved(self) -> Tensor:
        """θ − θ₀, flat."""
        return flat(self.parameters) - self.start

    @property
    def rate(self) -> float | None:
        """η in the scale of J: a step on the sum of one of n batches is 1/n of a step on the whole sum.

        None where η is not constant.
        """
        config = self.problem.config
        if config.optimiser != "sgd":
            return None
        return config.learning_rate / (self.problem.steps_per_epoch if config.reduction == "sum" else 1)

    @property
    def has_l2_penalty(self) -> bool:
        """Whether J has the penalty (λ/2)‖θ − θ₀‖²."""
        return self.penalty is not None and self.problem.config.anchor == "l2"

    def logits(self, images: Tensor) -> Tensor:
        """Logits (images, classes) with a graph.

        Args:
            images: As the network takes them.
        """
        return self.problem.session.logits(Batch(images, images, images))

    def forget_losses(self) -> Iterator[Tensor]:
        """L_forget over the forget set, in micro-batches with graphs."""
        config, objective, forget = self.problem.config, self.problem.objective, self.problem.forget
        count = sum(len(batch.labels) for batch in forget(None)) if config.reduction == "mean" else 1
        for batch in derivative_batches(forget(None)):
            losses = objective.per_image(batch)
            style = None if losses.style is None else losses.style.sum()
            yield combine(losses.kl.sum(), style, config.alpha, config.beta) / count

    def losses(self) -> Iterator[Tensor]:
        """J without the weight penalty, which is a quadratic and needs no graph."""
        yield from self.forget_losses()
        anchor = self.function_anchor
        if anchor is not None:
            for batch in derivative_batches(anchor.batches()):
                divergence = kl_divergence(anchor.original_logits(batch), self.problem.session.logits(batch))
                yield self.function_strength * divergence.sum() / len(anchor)

    @torch.no_grad()
    def value(self) -> float:
        """J."""
        penalty = 0.5 * self.strength * float(self.moved @ self._metric(self.moved))
        return sum(float(loss) for loss in self.losses()) + penalty

    @torch.no_grad()
    def forget_value(self) -> float:
        """L_forget."""
        return sum(float(loss) for loss in self.forget_losses())

    def gradient(self) -> Tensor:
        """∇J, flat."""
        return gradient(self.losses, self.parameters) + self.strength * self._metric(self.moved)

    def forget_gradient(self) -> Tensor:
        """∇L_forget, flat."""
        return gradient(self.forget_losses, self.parameters)

    def product(self) -> Product:
        """v ↦ ∇²J v."""
        network = hessian_product(self.losses, self.parameters)
        return lambda vector: network(vector) + self.strength * self._metric(vector)

    def forget_product(self) -> Product:
        """v ↦ ∇²L_forget v."""
        return hessian_product(self.forget_losses, self.parameters)

    def _metric(self, vector: Tensor) -> Tensor:
        """F v of the penalty ½ΔᵀFΔ: its gradient is linear in Δ, so it is taken at θ₀ + v."""
        if self.penalty is None:
            return torch.zeros_like(vector)
        weights = [nn.Parameter(part) for part in shaped(self.start + vector, self.parameters)]
        return flat(self.penalty.gradient(weights))

    @torch.no_grad()
    def set_weights(self, vector: Tensor) -> None:
        """Set θ.

        Args:
            vector: θ, flat.
        """
        for parameter, part in zip(self.parameters, shaped(vector, self.parameters), strict=True):
            parameter.copy_(part)


def derivative_batches(batches: Iterable[Batch]) -> Iterator[Batch]:
    """The same images in micro-batches for whose second derivatives there is memory.

    Args:
        batches: One pass over images.
    """
    for batch in batches:
        size = derivative_batch_size(MICRO_BATCH, batch.images.device)
        for parts in zip(*(torch.split(tensor, size) for tensor in batch), strict=True):
            yield Batch(*parts)
