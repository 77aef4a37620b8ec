"""Solve (A + δI) x = b with products alone, and say how well: the residual, and whether A + δI curved downwards."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from famr.certificates.curvature import Product
from famr.errors import NumericsError

RAISES = 5
"""How often the damping is made ten times larger where the matrix is not positive."""


@dataclass(frozen=True, eq=False)
class Solution:
    """x, and what is known about it."""

    x: Tensor
    damping: float
    residual: float
    """‖b − (A + δI)x‖/‖b‖, computed anew from x."""
    steps: int
    converged: bool
    negative_curvature: bool
    """A direction v with vᵀ(A + δI)v ≤ 0 was met: the matrix is not positive, and x is where the steps stopped."""


def conjugate_gradient(
    product: Product, b: Tensor, *, damping: float = 0.0, tolerance: float = 1e-4, steps: int = 100
) -> Solution:
    """Conjugate gradients from x = 0; stops at the tolerance, at negative curvature, or after `steps`."""
    x = torch.zeros_like(b)
    r = b.clone()
    direction, square, size = r.clone(), float(r @ r), float(b.norm())
    done, negative = 0, False
    while done < steps and square**0.5 > tolerance * size:
        bent = product(direction) + damping * direction
        curvature = float(direction @ bent)
        if curvature <= 0:
            negative = True
            break
        length = square / curvature
        x += length * direction
        r -= length * bent
        new = float(r @ r)
        direction = r + (new / square) * direction
        square, done = new, done + 1
    left = b - (product(x) + damping * x)
    residual = float(left.norm()) / size if size else 0.0
    converged = not negative and residual <= 2 * tolerance  # the recursion's residual drifts from the true one
    return Solution(x, damping, residual, done, converged, negative)


def solve_damped(product: Product, b: Tensor, *, damping: float, tolerance: float = 1e-2, steps: int = 50) -> Solution:
    """The same, with ten times the damping wherever the matrix turned out not to be positive or the steps did not
    suffice; an error where that does not help."""
    found = None
    for _ in range(RAISES + 1):
        found = conjugate_gradient(product, b, damping=damping, tolerance=tolerance, steps=steps)
        if found.converged:
            return replace(found, damping=damping)
        damping *= 10
    assert found is not None
    why = "the curvature is negative" if found.negative_curvature else f"the residual is {found.residual:.2g}"
    raise NumericsError(
        f"Conjugate gradients did not converge: {why} after {found.steps} steps, damping {found.damping:g}.",
        fix="Allow more steps or a larger damping.",
    )
