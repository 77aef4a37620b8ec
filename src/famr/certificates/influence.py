"""The influence step [FAMR, Eq. (7), (8)] with its corrected sign: where removing data moves the minimiser.

    Δ = +(H + δI)⁻¹ g,   g = Σ_T ∇ℓ(θ₀),   H the curvature of the retained loss, summed

ℓ is the cross-entropy that the model was trained with; Eq. (7) prints a minus.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F

from famr.anchors import FisherAnchor, KFACAnchor
from famr.certificates.anchored_objective import derivative_batches
from famr.certificates.claims import Assumption, Claim, Statement
from famr.certificates.conjugate_gradient import Solution, solve_damped
from famr.certificates.curvature import Product, flat, gauss_newton_product, gradient, shaped
from famr.data.loaders import Batches

DAMPING = 0.01
"""δ for each retained image: added to the mean curvature of the retained loss."""
SKETCH_TOLERANCE = 1e-2
"""Residual up to which the exact inverse of a sketched curvature counts as a solution."""

INFLUENCE = Statement(
    "influence_step",
    "The cosine between θ − θ₀ and the damped influence step +(H + δI)⁻¹Σ∇ℓ, over the weights that may change.",
    "[FAMR, Eq. (7), (8)], sign corrected",
)
Logits = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class InfluenceStep:
    """An influence step, and where its curvature is from.

    Attributes:
        solution: Δ, and how well the linear system is solved.
        images: Images from which the curvature was taken.
        sketched: Whether it is from a sketch.
    """

    solution: Solution
    images: int
    sketched: bool = False


def summed_gradient(logits: Logits, parameters: Sequence[nn.Parameter], forget: Batches) -> Tensor:
    """g = Σ_T ∇ℓ, flat.

    Args:
        logits: The network.
        parameters: θ₀ of the weights that may change.
        forget: Passes over T.
    """

    def losses() -> Iterator[Tensor]:
        for batch in derivative_batches(forget(None)):
            yield F.cross_entropy(logits(batch.images), batch.labels, reduction="sum")

    return gradient(losses, parameters)


def retained_curvature(
    logits: Logits, parameters: Sequence[nn.Parameter], retain: Batches, retain_count: int
) -> Product:
    """v ↦ H v, H the Gauss–Newton matrix of the retained loss, summed.

    Args:
        logits: The network.
        parameters: θ₀ of the weights that may change.
        retain: Passes over the retained images, or over a sample of them, which is scaled up.
        retain_count: Number of retained images.
    """
    scale = retain_count / sum(len(batch.labels) for batch in retain(None))

    def losses() -> Iterator[tuple[Tensor, Tensor]]:
        for batch in derivative_batches(retain(None)):
            predictions = logits(batch.images)
            yield predictions, F.cross_entropy(predictions, batch.labels, reduction="sum") * scale

    return gauss_newton_product(losses, parameters)


def influence_step(forget_gradient: Tensor, curvature: Product, damping: float) -> Solution:
    """Δ = +(H + δI)⁻¹ g by conjugate gradients [FAMR, Eq. (7), corrected].

    Args:
        forget_gradient: g.
        curvature: v ↦ H v.
        damping: δ; raised where the system is not solved with it.

    Raises:
        NumericsError: It is not solved with a larger δ either.
    """
    return solve_damped(curvature, forget_gradient, damping=damping)


def sketched_influence_step(
    forget_gradient: Tensor,
    anchor: KFACAnchor | FisherAnchor,
    parameters: Sequence[nn.Parameter],
    retain_count: int,
    damping: float,
) -> Solution:
    """The same with H = N·F, which is inverted exactly: (δI + N F)⁻¹ g = (I + (N/δ)F)⁻¹ g/δ.

    Args:
        forget_gradient: g.
        anchor: Has F, the Fisher information of a sketch.
        parameters: θ₀ of the weights that may change.
        retain_count: N.
        damping: δ.
    """
    parts = anchor.precondition(shaped(forget_gradient, parameters), retain_count / damping)
    x = flat(parts) / damping
    weights = [nn.Parameter(p.detach() + part) for p, part in zip(parameters, shaped(x, parameters), strict=True)]
    left = forget_gradient - retain_count * flat(anchor.gradient(weights)) - damping * x
    residual = float(left.norm() / forget_gradient.norm().clamp(min=1e-30))
    return Solution(x, damping, residual, 0, residual < SKETCH_TOLERANCE, False)


def influence_claim(step: InfluenceStep, moved: Tensor) -> Claim:
    """How the run's step compares with the influence step: an analogy, so it is measured and not assumed.

    Args:
        step: The influence step.
        moved: θ − θ₀, flat.
    """
    solution = step.solution
    sketched = [Assumption("The sketch has the curvature of the retained loss.", "stated")] if step.sketched else []
    return INFLUENCE.claim(
        float(F.cosine_similarity(moved, solution.x, dim=0)) if float(moved.norm()) else 0.0,
        assumptions=(
            Assumption.checked("The linear system is solved.", solution.converged),
            *sketched,
            Assumption("The original minimises the training loss.", "stated"),
            Assumption("The loss is quadratic between the original and the retrained weights.", "stated"),
        ),
        details={
            "distance": float((moved - solution.x).norm()),
            "length_of_the_run": float(moved.norm()),
            "length_of_the_influence_step": float(solution.x.norm()),
            "damping": solution.damping,
            "residual": solution.residual,
            "steps": solution.steps,
            "retained_images": step.images,
        },
    )
