"""The bounds that certificates quote, as pure functions of numbers."""

from __future__ import annotations

import math


def pinsker(divergence: float) -> float:
    """‖p − q‖₁ ≤ √(2·KL(q ‖ p)); never more than 2 [FAMR, App. Prop. 2, by Pinsker].

    >>> pinsker(0.5), pinsker(9.0)
    (1.0, 2.0)
    """
    return min(2.0, math.sqrt(2 * max(divergence, 0.0)))


def distance_to_stationary(residual: float, curvature: float) -> float | None:
    """‖θ − θ*‖ ≤ ‖∇J(θ)‖/μ where ∇²J ⪰ μ on the ball of that radius; None without μ > 0.

    >>> distance_to_stationary(1.0, 4.0)
    0.25
    """
    return residual / curvature if curvature > 0 else None


def influence_gap(damping: float, gradient: float, curvature: float) -> float | None:
    """‖(H+λI)⁻¹g − H⁻¹g‖ ≤ λ‖g‖/(μ(μ+λ)), μ the smallest eigenvalue of H ≻ 0 [FAMR, Eq. (9), corrected].

    >>> influence_gap(1.0, 2.0, 1.0)
    1.0
    """
    return damping * gradient / (curvature * (curvature + damping)) if curvature > 0 else None


def contraction(rate: float, strength: float) -> float | None:
    """1 − ηλ: what each step shrinks the distance to θ* by where L_forget is convex [FAMR, App. Thm. 1]; None where
    nothing follows.

    >>> contraction(0.1, 2.0)
    0.8
    """
    return 1 - rate * strength if 0 < rate * strength <= 1 else None


def largest_rate(smoothness: float, strength: float) -> float | None:
    """1/(L + λ): the largest η for which App. Thm. 1 speaks [FAMR, App. Thm. 1].

    >>> largest_rate(3.0, 1.0)
    0.25
    """
    return 1 / (smoothness + strength) if smoothness + strength > 0 else None
