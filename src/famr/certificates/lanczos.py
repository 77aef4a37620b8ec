"""The ends of the spectrum of a symmetric matrix that is known by its products alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from famr.certificates.curvature import Product

INVARIANT = 1e-10


@dataclass(frozen=True)
class Spectrum:
    """The smallest and the largest value found, and how far each may be from an eigenvalue.

    An eigenvalue lies within `…_error` of each. The true smallest one is never above `smallest`, the true largest
    never below `largest`: these are values of vᵀAv on unit vectors. That nothing lies further out is likely, since the
    start is random, but not proved, unless `exact`.
    """

    smallest: float
    smallest_error: float
    largest: float
    largest_error: float
    steps: int
    exact: bool
    """The steps spanned the whole space, or all of it that the start vector reaches."""

    def shifted(self, by: float) -> Spectrum:
        """The spectrum of A + by·I."""
        return replace(self, smallest=self.smallest + by, largest=self.largest + by)


def extreme_eigenvalues(product: Product, size: int, *, steps: int, like: Tensor, seed: int = 0) -> Spectrum:
    """Lanczos' method from a random vector, each new vector made orthogonal to all before it."""
    draws = torch.Generator().manual_seed(seed)
    vector = torch.randn(size, generator=draws, dtype=torch.float64).to(like)
    basis = [vector / vector.norm()]
    diagonal: list[float] = []
    beside: list[float] = []
    for step in range(min(steps, size)):
        image = product(basis[-1])
        diagonal.append(float(image @ basis[-1]))
        for _ in range(2):  # twice is enough to be orthogonal to rounding
            for earlier in basis:
                image = image - (image @ earlier) * earlier
        length = float(image.norm())
        beside.append(length)
        scale = max(abs(value) for value in diagonal)
        if length <= INVARIANT * max(scale, INVARIANT) or step + 1 == min(steps, size):
            break
        basis.append(image / length)
    count = len(diagonal)
    matrix = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
    for place, value in enumerate(beside[: count - 1]):
        matrix[place, place + 1] = matrix[place + 1, place] = value
    values, vectors = torch.linalg.eigh(matrix)
    errors = (beside[-1] * vectors[-1]).abs()  # ‖A x − θ x‖ of each Ritz pair
    return Spectrum(
        smallest=float(values[0]),
        smallest_error=float(errors[0]),
        largest=float(values[-1]),
        largest_error=float(errors[-1]),
        steps=count,
        exact=count == size or beside[-1] <= INVARIANT * max(float(values.abs().max()), INVARIANT),
    )
