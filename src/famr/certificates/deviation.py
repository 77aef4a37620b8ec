"""Claims about a run of FAMR on any network: `deviation_claims` measures, the functions after it are pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from famr.certificates.anchored_objective import AnchoredObjective
from famr.certificates.bounds import contraction, distance_to_stationary, largest_rate, pinsker
from famr.certificates.claims import Assumption, Claim, Statement
from famr.certificates.lanczos import Spectrum, extreme_eigenvalues
from famr.losses.objective import drift_bound, target_kl
from famr.unlearn.problem import Problem

STATIONARY = 1e-3
"""‖∇J(θ)‖ relative to ‖∇L_forget(θ₀)‖ up to which a point is called stationary."""
DESCENT_STEPS = 5
RANDOM_DIRECTIONS = 2
"""Points of the ball's surface in random directions, besides the one along −∇J."""

STATIONARITY = Statement(
    "stationarity",
    "‖∇J(θ)‖, the norm of the objective's gradient at the result; it is 0 at a stationary point, Eq. (6).",
    "[FAMR, Eq. (6)]",
)
SMALLEST_CURVATURE = Statement(
    "smallest_curvature",
    "The smallest eigenvalue of ∇²J(θ); above 0 at a stationary point it means a strict local minimum.",
    "[FAMR, Eq. (6)]; Lanczos",
)
DISTANCE = Statement(
    "distance_to_resting_point",
    "A bound on the distance to the stationary point of J, where J is strongly convex around the result.",
    "strong convexity: ‖θ − θ*‖ ≤ ‖∇J(θ)‖/μ",
)
DRIFT = Statement("drift", "‖θ − θ₀‖, against √(2(L_forget(θ₀) − L_forget(θ))/λ).", "[FAMR, App. Prop. 1]")
CONTRACTION = Statement(
    "contraction",
    "The factor by which a full-batch step from the result reduces ‖∇J‖, against 1 − ηλ.",
    "[FAMR, App. Thm. 1]",
)
STEP_SIZE = Statement(
    "step_size",
    "η in the scale of J, against 1/(L + λ), L the largest curvature of L_forget at the result.",
    "[FAMR, App. Thm. 1]",
)
NO_L2_PENALTY = "the weight anchor is not an ℓ₂ penalty: it has another metric, or is the metric of the step"
OTHER_STEPS = "App. Thm. 1 is about plain gradient steps with a penalty on the weights, and the run took others"


@dataclass(frozen=True, eq=False)
class PointMeasures:
    """J and its gradient at one point.

    Attributes:
        value: J(θ).
        forget_loss: L_forget(θ).
        gradient: ∇J(θ), flat.
        drift: ‖θ − θ₀‖.
    """

    value: float
    forget_loss: float
    gradient: Tensor
    drift: float

    @classmethod
    def of(cls, objective: AnchoredObjective) -> PointMeasures:
        """Measure at the current weights.

        Args:
            objective: J.
        """
        drift = float(objective.moved.norm())
        return cls(objective.value(), objective.forget_value(), objective.gradient(), drift)

    @property
    def gradient_norm(self) -> float:
        """‖∇J(θ)‖."""
        return float(self.gradient.norm())


def deviation_claims(objective: AnchoredObjective, result: Tensor, lanczos_steps: int) -> list[Claim]:
    """All claims about the result of a run; the network has its weights afterwards.

    Args:
        objective: J of the run.
        result: θ, flat.
        lanczos_steps: For each spectrum.
    """
    objective.set_weights(objective.start)
    first = PointMeasures.of(objective)
    forget_gradient = float(objective.forget_gradient().norm())  # ‖∇L_forget(θ₀)‖
    objective.set_weights(result)
    last = PointMeasures.of(objective)
    relative = last.gradient_norm / forget_gradient if forget_gradient else 0.0

    spectrum = extreme_eigenvalues(objective.product(), len(result), steps=lanczos_steps, like=result)
    forget_spectrum = spectrum_of_forgetting(objective, spectrum, result, lanczos_steps)
    distance = measure_distance(objective, result, last, spectrum)
    measured = measure_contraction(objective, result, last)
    gaps = measure_target_gaps(objective.problem)
    config, rate, strength = objective.problem.config, objective.rate, objective.strength
    return [
        stationarity_claim(last.gradient_norm, relative, stationary_rule=config.optimiser != "adamw"),
        curvature_claim(spectrum, relative),
        distance,
        drift_claim(first, last, strength, l2_penalty=objective.has_l2_penalty),
        target_gap_claim(gaps, uniform=config.target == "uniform"),
        contraction_claim(measured, rate, strength, forget_spectrum),
        step_size_claim(rate, strength, forget_spectrum),
    ]


def spectrum_of_forgetting(
    objective: AnchoredObjective, spectrum: Spectrum, result: Tensor, lanczos_steps: int
) -> Spectrum:
    """The spectrum of ∇²L_forget, without further products where it follows from that of ∇²J.

    Args:
        objective: J, at the result.
        spectrum: Of ∇²J at the result.
        result: θ, flat.
        lanczos_steps: For the spectrum.
    """
    anchored = objective.penalty is not None or objective.function_anchor is not None
    if objective.rate is None or not anchored:  # no claim reads it, or J is L_forget
        return spectrum
    if objective.function_anchor is None and objective.has_l2_penalty:  # ∇²J = ∇²L_forget + λI
        return spectrum.shifted(-objective.strength)
    return extreme_eigenvalues(objective.forget_product(), len(result), steps=lanczos_steps, like=result)


def stationarity_claim(gradient_norm: float, relative: float, *, stationary_rule: bool) -> Claim:
    """‖∇J(θ)‖ ≈ 0 [FAMR, Eq. (6)].

    Args:
        gradient_norm: ‖∇J(θ)‖.
        relative: The same relative to ‖∇L_forget(θ₀)‖.
        stationary_rule: Whether the update rule is stationary only where ∇J = 0.
    """
    return STATIONARITY.claim(
        gradient_norm,
        holds=relative <= STATIONARY,
        assumptions=(
            Assumption.checked("The update rule of the run is stationary only where ∇J = 0.", stationary_rule),
        ),
        details={"relative_to_first_gradient": relative, "called_stationary_up_to": STATIONARY},
    )


def curvature_claim(spectrum: Spectrum, relative: float) -> Claim:
    """λ_min(∇²J) > 0 by more than its error.

    Args:
        spectrum: Of ∇²J at the result.
        relative: ‖∇J(θ)‖ relative to ‖∇L_forget(θ₀)‖.
    """
    return SMALLEST_CURVATURE.claim(
        spectrum.smallest,
        holds=spectrum.lower > 0,
        assumptions=(
            Assumption("No eigenvalue is smaller than the computed one.", "checked" if spectrum.exact else "stated"),
            Assumption.checked("The result is a stationary point.", relative <= STATIONARY),
        ),
        details={
            "error": spectrum.smallest_error,
            "largest": spectrum.largest,
            "largest_error": spectrum.largest_error,
            "lanczos_steps": spectrum.steps,
        },
    )


def measure_distance(objective: AnchoredObjective, result: Tensor, last: PointMeasures, spectrum: Spectrum) -> Claim:
    """‖θ − θ*‖ ≤ ‖∇J(θ)‖/μ, with μ the least curvature at the result and on the surface of the ball of that radius.

    Args:
        objective: J, at the result.
        result: θ, flat.
        last: J and its gradient there.
        spectrum: Of ∇²J there.
    """
    radius = distance_to_stationary(last.gradient_norm, spectrum.lower)
    if radius is None:
        why = f"J is not strongly convex at the result: its smallest curvature is {spectrum.smallest:.3g}"
        if spectrum.smallest > 0:
            why = f"the smallest curvature found, {spectrum.smallest:.3g}, is no larger than its error; take more steps"
        return DISTANCE.unavailable(why)
    draws = torch.Generator().manual_seed(0)
    random = [torch.randn(result.shape, generator=draws).to(result) for _ in range(RANDOM_DIRECTIONS)]
    curvature = spectrum.lower
    for direction in (-last.gradient, *random):
        objective.set_weights(result + radius * direction / direction.norm().clamp(min=1e-30))
        there = extreme_eigenvalues(objective.product(), len(result), steps=spectrum.steps, like=result)
        curvature = min(curvature, there.lower)
    objective.set_weights(result)
    bound = distance_to_stationary(last.gradient_norm, curvature)
    if bound is None:
        why = f"J is not strongly convex within {radius:.3g} of the result: a curvature of {curvature:.3g} was found"
        return DISTANCE.unavailable(why)
    return DISTANCE.claim(
        bound=bound,
        assumptions=(
            Assumption.checked("The curvature is positive at the result and at 3 points of the ball's surface.", True),
            Assumption("It is nowhere smaller between them.", "stated"),
            Assumption("No eigenvalue is smaller than the computed ones.", "checked" if spectrum.exact else "stated"),
        ),
        details={"smallest_curvature": curvature, "radius_checked": radius},
    )


def drift_claim(first: PointMeasures, last: PointMeasures, strength: float, *, l2_penalty: bool) -> Claim:
    """‖θ − θ₀‖ ≤ √(2(L_forget(θ₀) − L_forget(θ))/λ) where J(θ) ≤ J(θ₀) [FAMR, App. Prop. 1].

    Args:
        first: J at θ₀.
        last: J at θ.
        strength: λ.
        l2_penalty: Whether J has an ℓ₂ penalty, of which alone the proposition speaks.
    """
    details = {"forget_loss_before": first.forget_loss, "forget_loss_after": last.forget_loss, "strength": strength}
    if not l2_penalty:
        return DRIFT.claim(last.drift, details={**details, "no_bound_because": NO_L2_PENALTY})
    decreased = Assumption.checked("J(θ) ≤ J(θ₀).", last.value <= first.value)
    bound = drift_bound(first.forget_loss, last.forget_loss, strength)
    return DRIFT.claim(last.drift, bound, assumptions=(decreased,), details=details)


class TargetGaps(NamedTuple):
    """How far the predictions on the forget images are from their target.

    Attributes:
        gaps: ‖p − q‖₁ of each image, (images,).
        bounds: √(2·KL(q ‖ p)) of each image, (images,).
    """

    gaps: Tensor
    bounds: Tensor


@torch.no_grad()
def measure_target_gaps(problem: Problem) -> TargetGaps:
    """Both sides of Pinsker's inequality on every forget image.

    Args:
        problem: The run's problem, its network at the result.
    """
    target, gaps, bounds = problem.objective.target, [], []
    for batch in problem.forget(None):
        logits = problem.session.logits(batch)
        rows = target if target.ndim == 1 else target[batch.positions.to(target.device)]
        gaps.append((torch.softmax(logits, dim=-1) - rows).abs().sum(dim=-1))
        bounds += [pinsker(divergence) for divergence in target_kl(logits, rows).tolist()]
    return TargetGaps(torch.cat(gaps).double().cpu(), torch.tensor(bounds, dtype=torch.float64))


def target_gap_claim(measured: TargetGaps, *, uniform: bool) -> Claim:
    """‖p − q‖₁ ≤ √(2·KL(q ‖ p)) on every forget image [FAMR, App. Prop. 2].

    Args:
        measured: Both sides.
        uniform: Whether the target is uniform, as in the paper.
    """
    gaps, bounds = measured
    target = "uniform" if uniform else "the target of each image"
    says = (
        f"max ‖p − q‖₁ over the forget images, q {target}; the bound is Pinsker's of each image, and 2 means disjoint "
        "distributions."
    )
    name = "uniformity_gap" if uniform else "target_gap"
    return Statement(name, says, "[FAMR, App. Prop. 2], Pinsker").claim(
        float(gaps.max()),
        float(bounds.max()),
        holds=bool((gaps <= bounds * (1 + 1e-6) + 1e-6).all()),
        details={"mean": float(gaps.mean()), "mean_bound": float(bounds.mean()), "images": len(gaps)},
    )


def measure_contraction(objective: AnchoredObjective, result: Tensor, last: PointMeasures) -> float | None:
    """The mean factor by which full-batch steps from the result reduce ‖∇J‖.

    Args:
        objective: J, at the result.
        result: θ, flat.
        last: J and its gradient there.

    Returns:
        The factor; None where App. Thm. 1 does not apply: for other steps than plain SGD, or without a penalty.
    """
    if objective.rate is None or objective.penalty is None:
        return None
    weights, gradient = result, last.gradient
    for _ in range(DESCENT_STEPS):
        weights = weights - objective.rate * gradient
        objective.set_weights(weights)
        gradient = objective.gradient()
    objective.set_weights(result)
    reduction = float(gradient.norm()) / max(last.gradient_norm, 1e-30)
    return float(reduction ** (1 / DESCENT_STEPS))


def contraction_claim(measured: float | None, rate: float | None, strength: float, forget_spectrum: Spectrum) -> Claim:
    """The measured factor ≤ 1 − ηλ where L_forget is convex and η ≤ 1/(L + λ) [FAMR, App. Thm. 1].

    Args:
        measured: The factor; None where the theorem does not apply.
        rate: η in the scale of J; None where it is not constant.
        strength: λ.
        forget_spectrum: Of ∇²L_forget at the result.
    """
    if measured is None or rate is None:
        return CONTRACTION.unavailable(OTHER_STEPS)
    convex = forget_spectrum.smallest >= -max(1e-6 * abs(forget_spectrum.largest), 1e-12)
    limit = largest_rate(forget_spectrum.largest, strength)
    return CONTRACTION.claim(
        measured,
        contraction(rate, strength),
        assumptions=(
            Assumption.checked("L_forget is convex at the result.", convex),
            Assumption.checked("η ≤ 1/(L + λ).", limit is not None and rate <= limit),
        ),
        details={"steps": DESCENT_STEPS, "rate": rate, "strength": strength},
    )


def step_size_claim(rate: float | None, strength: float, forget_spectrum: Spectrum) -> Claim:
    """η ≤ 1/(L + λ) [FAMR, App. Thm. 1].

    Args:
        rate: η in the scale of J; None where it is not constant.
        strength: λ.
        forget_spectrum: Of ∇²L_forget at the result; its largest eigenvalue is L.
    """
    if rate is None:
        return STEP_SIZE.unavailable("the steps have no fixed η to compare")
    return STEP_SIZE.claim(
        rate,
        largest_rate(forget_spectrum.largest, strength),
        assumptions=(Assumption("L is not larger along the path of the run.", "stated"),),
        details={
            "largest_curvature": forget_spectrum.largest,
            "largest_curvature_error": forget_spectrum.largest_error,
        },
    )
