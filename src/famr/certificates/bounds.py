"""The bounds that certificates quote, as pure functions of numbers."""

from __future__ import annotations

import math


def pinsker(divergence: float) -> float:
    """‖p − q‖₁ ≤ √(2·KL(q ‖ p)), and never more than 2 [FAMR, App. Prop. 2, by Pinsker].

    Args:
        divergence: KL(q ‖ p) in nats; rounding below 0 counts as 0.

    >>> pinsker(0.5), pinsker(9.0)
    (1.0, 2.0)
    """
    return min(2.0, math.sqrt(2 * max(divergence, 0.0)))


def distance_to_stationary(gradient_norm: float, curvature: float) -> float | None:
    """‖θ − θ*‖ ≤ ‖∇J(θ)‖/μ where ∇²J ⪰ μ > 0 on the ball of that radius.

    Args:
        gradient_norm: ‖∇J(θ)‖.
        curvature: μ.

    Returns:
        The bound; None where μ is not positive.

    >>> distance_to_stationary(1.0, 4.0)
    0.25
    """
    return gradient_norm / curvature if curvature > 0 else None


def influence_gap(damping: float, gradient_norm: float, curvature: float) -> float | None:
    """‖(H+λI)⁻¹g − H⁻¹g‖ ≤ λ‖g‖/(μ(μ+λ)) for H ⪰ μ > 0 [FAMR, Eq. (9), corrected].

    Args:
        damping: λ.
        gradient_norm: ‖g‖.
        curvature: μ, the smallest eigenvalue of H.

    Returns:
        The bound; None where μ is not positive.

    >>> influence_gap(1.0, 2.0, 1.0)
    1.0
    """
    return damping * gradient_norm / (curvature * (curvature + damping)) if curvature > 0 else None


def contraction(rate: float, strength: float) -> float | None:
    """1 − ηλ: the factor by which a step shrinks ‖θ − θ*‖ where L_forget is convex [FAMR, App. Thm. 1].

    Args:
        rate: η.
        strength: λ.

    Returns:
        The factor; None where ηλ is not in (0, 1], as the theorem then gives none.

    >>> contraction(0.1, 2.0)
    0.8
    """
    return 1 - rate * strength if 0 < rate * strength <= 1 else None


def largest_rate(smoothness: float, strength: float) -> float | None:
    """1/(L + λ): the largest η that App. Thm. 1 covers [FAMR, App. Thm. 1].

    Args:
        smoothness: L, the largest curvature of L_forget.
        strength: λ.

    Returns:
        The rate; None where L + λ is not positive.

    >>> largest_rate(3.0, 1.0)
    0.25
    """
    return 1 / (smoothness + strength) if smoothness + strength > 0 else None
