"""Solve (A + δI)x = b by products alone, with the residual and whether A + δI is positive definite as far as seen."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from famr.certificates.curvature import Product
from famr.errors import NumericsError

RAISES = 5
"""How often the damping is multiplied by ten where the system is not solved."""


@dataclass(frozen=True, eq=False)
class Solution:
    """An approximate solution of (A + δI)x = b.

    Attributes:
        x: The solution.
        damping: δ.
        residual: ‖b − (A + δI)x‖/‖b‖, computed from x.
        steps: Steps taken.
        converged: Whether the residual is within twice the tolerance.
        negative_curvature: Whether a direction v with vᵀ(A + δI)v ≤ 0 was met; the iteration stops there.
    """

    x: Tensor
    damping: float
    residual: float
    steps: int
    converged: bool
    negative_curvature: bool


def conjugate_gradient(
    product: Product, b: Tensor, *, damping: float = 0.0, tolerance: float = 1e-4, steps: int = 100
) -> Solution:
    """Conjugate gradients from x = 0 until the tolerance, negative curvature or the last step.

    Args:
        product: v ↦ Av.
        b: The right-hand side.
        damping: δ.
        tolerance: On the residual, relative to ‖b‖.
        steps: At most.
    """
    x = torch.zeros_like(b)
    r = b.clone()
    direction, square, size = r.clone(), float(r @ r), float(b.norm())
    step, negative = 0, False
    while step < steps and square**0.5 > tolerance * size:
        image = product(direction) + damping * direction
        curvature = float(direction @ image)
        if curvature <= 0:
            negative = True
            break
        length = square / curvature
        x += length * direction
        r -= length * image
        new_square = float(r @ r)
        direction = r + (new_square / square) * direction
        square, step = new_square, step + 1
    residual = float((b - (product(x) + damping * x)).norm()) / size if size else 0.0
    converged = not negative and residual <= 2 * tolerance  # the residual of the recursion drifts from the true one
    return Solution(x, damping, residual, step, converged, negative)


def solve_damped(product: Product, b: Tensor, *, damping: float, tolerance: float = 1e-2, steps: int = 50) -> Solution:
    """Conjugate gradients, with ten times the damping as often as needed where they do not converge.

    Args:
        product: v ↦ Av.
        b: The right-hand side.
        damping: The first δ to try.
        tolerance: On the residual, relative to ‖b‖.
        steps: At most, for each damping.

    Raises:
        NumericsError: They do not converge for 100,000 times the damping either.
    """
    dampings = [damping * 10**power for power in range(RAISES + 1)]
    for raised in dampings:
        solution = conjugate_gradient(product, b, damping=raised, tolerance=tolerance, steps=steps)
        if solution.converged:
            return solution
    why = "the curvature is negative" if solution.negative_curvature else f"the residual is {solution.residual:.2g}"
    raise NumericsError(
        f"Conjugate gradients did not converge: {why} after {solution.steps} steps, damping {solution.damping:g}.",
        fix="Allow more steps or a larger damping.",
    )
