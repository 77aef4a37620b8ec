"""What can be said about a run of FAMR on any network: each claim measured at its result."""

from __future__ import annotations

import torch
from torch import Tensor

from famr.certificates.bounds import contraction, distance_to_stationary, largest_rate, pinsker
from famr.certificates.claims import Assumption, Claim, bounded
from famr.certificates.curvature import gradient
from famr.certificates.lanczos import Spectrum, extreme_eigenvalues
from famr.certificates.resting import RestingObjective
from famr.config import ResolvedFAMR
from famr.losses.objective import drift_bound, target_kl

STATIONARY = 1e-3
"""The relative residual up to which a point is called stationary."""
DESCENT_STEPS = 5


def deviation_claims(objective: RestingObjective, result: Tensor, batches: int, steps: int) -> list[Claim]:
    """Every claim about the point `result`, from the objective of its run. `steps` are Lanczos steps a spectrum."""
    method = objective.problem.config
    objective.set_weights(objective.start)
    first = _Point.at(objective)
    steepest = float(gradient(objective.forget_pieces, objective.parameters).norm())  # ‖∇L_forget(θ₀)‖
    objective.set_weights(result)
    last = _Point.at(objective)
    spectrum = extreme_eigenvalues(objective.product(), len(result), steps=steps, like=result)
    forget_spectrum = _of_forgetting(objective, spectrum, result, steps)
    return [
        _stationarity(method, last, steepest),
        _curvature(spectrum, last, steepest),
        _distance(objective, result, last, spectrum, steps),
        _drift(objective, first, last),
        _target_gap(objective),
        _contraction(objective, result, last, batches, forget_spectrum),
        _step_size(objective, batches, forget_spectrum),
    ]


def _of_forgetting(objective: RestingObjective, spectrum: Spectrum, result: Tensor, steps: int) -> Spectrum:
    """The spectrum of ∇²L_forget, given that of ∇²J."""
    method = objective.problem.config
    if method.optimiser != "sgd" or (objective.penalty is None and objective.function_anchor is None):
        return spectrum  # nobody asks for it, or J is L_forget
    if objective.function_anchor is None and method.anchor == "l2":  # ∇²J = ∇²L_forget + λI
        return spectrum.shifted(-objective.strength)
    return extreme_eigenvalues(objective.forget_product(), len(result), steps=steps, like=result)


class _Point:
    """J, L_forget, ∇J and the drift at one place."""

    def __init__(self, value: float, forget: float, slope: Tensor, drift: float) -> None:
        self.value, self.forget, self.slope, self.drift = value, forget, slope, drift
        self.residual = float(slope.norm())

    @classmethod
    def at(cls, objective: RestingObjective) -> _Point:
        return cls(objective.value(), objective.forget_value(), objective.gradient(), float(objective.moved.norm()))


def _stationarity(method: ResolvedFAMR, last: _Point, steepest: float) -> Claim:
    follows = Assumption.found("The run's steps rest only where ∇J = 0.", method.optimiser != "adamw")
    relative = last.residual / steepest if steepest else 0.0
    return Claim(
        "stationarity",
        "‖∇J(θ)‖: how far the result is from a resting point of the objective; 0 is Eq. (6).",
        "[FAMR, Eq. (6)]",
        value=last.residual,
        holds=relative <= STATIONARY,
        assumptions=(follows,),
        details={"relative_to_first_gradient": relative, "called_stationary_up_to": STATIONARY},
    )


def _curvature(spectrum: Spectrum, last: _Point, steepest: float) -> Claim:
    relative = last.residual / steepest if steepest else 0.0
    return Claim(
        "smallest_curvature",
        "The smallest eigenvalue of ∇²J(θ); above 0 at a resting point means a strict local minimum.",
        "[FAMR, Eq. (6)]; Lanczos",
        value=spectrum.smallest,
        holds=spectrum.smallest - spectrum.smallest_error > 0,
        assumptions=(
            Assumption("No eigenvalue lies below the one that was found.", "checked" if spectrum.exact else "stated"),
            Assumption.found("The result is a resting point.", relative <= STATIONARY),
        ),
        details={
            "error": spectrum.smallest_error,
            "largest": spectrum.largest,
            "largest_error": spectrum.largest_error,
            "lanczos_steps": spectrum.steps,
        },
    )


def _distance(objective: RestingObjective, result: Tensor, last: _Point, spectrum: Spectrum, steps: int) -> Claim:
    name, source = "distance_to_resting_point", "strong convexity: ‖θ − θ*‖ ≤ ‖∇J(θ)‖/μ"
    says = "How far the exact resting point of J can be, where J is strongly convex around the result."
    curvature = spectrum.smallest - spectrum.smallest_error
    radius = distance_to_stationary(last.residual, curvature)
    if radius is None:
        why = f"J is not strongly convex at the result: its smallest curvature is {spectrum.smallest:.3g}"
        if spectrum.smallest > 0:
            why = f"the smallest curvature found, {spectrum.smallest:.3g}, is no larger than its error; take more steps"
        return Claim(name, says, source, not_available=why)
    draws = torch.Generator().manual_seed(0)
    directions = [-last.slope, *(torch.randn(result.shape, generator=draws).to(result) for _ in range(2))]
    for direction in directions:  # the curvature may be smaller elsewhere on the ball
        objective.set_weights(result + radius * direction / direction.norm().clamp(min=1e-30))
        there = extreme_eigenvalues(objective.product(), len(result), steps=steps, like=result)
        curvature = min(curvature, there.smallest - there.smallest_error)
    objective.set_weights(result)
    checked = distance_to_stationary(last.residual, curvature)
    if checked is None:
        why = f"J is not strongly convex within {radius:.3g} of the result: a curvature of {curvature:.3g} was found"
        return Claim(name, says, source, not_available=why)
    return Claim(
        name,
        says,
        source,
        bound=checked,
        assumptions=(
            Assumption.found("The curvature is positive at the result and at 3 points of the ball's surface.", True),
            Assumption("It is nowhere smaller between them.", "stated"),
            Assumption("No eigenvalue lies below those that were found.", "checked" if spectrum.exact else "stated"),
        ),
        details={"smallest_curvature": curvature, "radius_checked": radius},
    )


def _drift(objective: RestingObjective, first: _Point, last: _Point) -> Claim:
    name, source = "drift", "[FAMR, App. Prop. 1]"
    says = "‖θ − θ₀‖, against √(2(L_forget(θ₀) − L_forget(θ))/λ)."
    details = {"forget_loss_before": first.forget, "forget_loss_after": last.forget, "strength": objective.strength}
    if objective.penalty is None or objective.problem.config.anchor != "l2":
        why = "the weights are held by another metric than ℓ₂, or the anchor is the metric of the step"
        return Claim(name, says, source, value=last.drift, details={**details, "no_bound_because": why})
    lower = Assumption.found("J(θ) ≤ J(θ₀).", last.value <= first.value)
    bound = drift_bound(first.forget, last.forget, objective.strength)
    return Claim(name, says, source, **bounded(last.drift, bound), assumptions=(lower,), details=details)


@torch.no_grad()
def _target_gap(objective: RestingObjective) -> Claim:
    loss, gaps, bounds = objective.problem.objective, [], []
    for batch in objective.problem.forget(None):
        logits = loss.session.logits(batch)
        target = loss.target if loss.target.ndim == 1 else loss.target[batch.positions.to(loss.target.device)]
        gaps.append((torch.softmax(logits, dim=-1) - target).abs().sum(dim=-1))
        bounds += [pinsker(value) for value in target_kl(logits, target).tolist()]
    gap, limit = torch.cat(gaps).double().cpu(), torch.tensor(bounds, dtype=torch.float64)
    uniform = loss.config.target == "uniform"
    return Claim(
        "uniformity_gap" if uniform else "target_gap",
        f"max ‖p − q‖₁ over the forget images, q {'uniform' if uniform else 'the target of each image'}; the bound is "
        "Pinsker's, image by image, and 2 is no answer in common.",
        "[FAMR, App. Prop. 2], Pinsker",
        value=float(gap.max()),
        bound=float(limit.max()),
        holds=bool((gap <= limit * (1 + 1e-6) + 1e-6).all()),
        details={"mean": float(gap.mean()), "mean_bound": float(limit.mean()), "images": len(gap)},
    )


def _rate(objective: RestingObjective, batches: int) -> float | None:
    """η in the scale of J: a step on one batch's sum is a 1/batches-th step on the whole sum."""
    method = objective.problem.config
    if method.optimiser != "sgd":
        return None
    return method.learning_rate / (batches if method.reduction == "sum" else 1)


def _convex(spectrum: Spectrum) -> bool:
    return spectrum.smallest >= -max(1e-6 * abs(spectrum.largest), 1e-12)


def _contraction(objective: RestingObjective, result: Tensor, last: _Point, batches: int, spectrum: Spectrum) -> Claim:
    name, source = "contraction", "[FAMR, App. Thm. 1]"
    says = "How much one full-batch step from the result shrinks ‖∇J‖, against 1 − ηλ."
    rate = _rate(objective, batches)
    if rate is None or objective.penalty is None:
        why = "App. Thm. 1 is about plain gradient steps with a penalty on the weights, which this run did not take"
        return Claim(name, says, source, not_available=why)
    place, slope = result, last.slope
    for _ in range(DESCENT_STEPS):
        place = place - rate * slope
        objective.set_weights(place)
        slope = objective.gradient()
    objective.set_weights(result)
    measured = (float(slope.norm()) / max(last.residual, 1e-30)) ** (1 / DESCENT_STEPS)
    limit = largest_rate(spectrum.largest, objective.strength)
    return Claim(
        name,
        says,
        source,
        **bounded(measured, contraction(rate, objective.strength)),
        assumptions=(
            Assumption.found("L_forget is convex at the result.", _convex(spectrum)),
            Assumption.found("η ≤ 1/(L + λ).", limit is not None and rate <= limit),
        ),
        details={"steps": DESCENT_STEPS, "rate": rate, "strength": objective.strength},
    )


def _step_size(objective: RestingObjective, batches: int, spectrum: Spectrum) -> Claim:
    name, source = "step_size", "[FAMR, App. Thm. 1]"
    says = "η in the scale of J, against 1/(L + λ), L the largest curvature of L_forget at the result."
    rate = _rate(objective, batches)
    if rate is None:
        return Claim(name, says, source, not_available="the steps have no fixed η that could be compared")
    limit = largest_rate(spectrum.largest, objective.strength)
    return Claim(
        name,
        says,
        source,
        **bounded(rate, limit),
        assumptions=(Assumption("L is nowhere larger on the way.", "stated"),),
        details={"largest_curvature": spectrum.largest, "largest_curvature_error": spectrum.largest_error},
    )
