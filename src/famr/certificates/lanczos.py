"""The extreme eigenvalues of a symmetric matrix that is known by its products alone, by Lanczos' method.

A product is a pass over the data, so the number of products is fixed instead of the precision, and the precision is
reported. scipy's `eigsh` cannot stop so: made to accept its first factorisation it begins with Av in place of v, takes
one product more, keeps the basis on the host, and differs from the numbers of earlier certificates by up to 1 % where
an end has not converged. The tests compare both where they converge.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from scipy.linalg import eigh_tridiagonal
from torch import Tensor

from famr.certificates.curvature import Product
from famr.errors import NumericsError

INVARIANT = 1e-10
"""Norm of a new basis vector, relative to the largest eigenvalue, below which the Krylov space is invariant."""


@dataclass(frozen=True)
class Spectrum:
    """Estimates θ = xᵀAx of the smallest and the largest eigenvalue on unit vectors x, with residuals ‖Ax − θx‖.

    An eigenvalue lies within its residual of each. The true smallest eigenvalue is at most `smallest`, the true largest
    at least `largest`. That none lies further out is likely, as the start is random, but proved only if `exact`.

    Attributes:
        smallest: The estimate of the smallest eigenvalue.
        smallest_error: Its residual.
        largest: The estimate of the largest eigenvalue.
        largest_error: Its residual.
        steps: Dimensions of the Krylov space.
        exact: Whether the Krylov space is the whole space, or all of it that the start vector reaches.
    """

    smallest: float
    smallest_error: float
    largest: float
    largest_error: float
    steps: int
    exact: bool

    @property
    def lower(self) -> float:
        """`smallest` less its error."""
        return self.smallest - self.smallest_error

    def shifted(self, by: float) -> Spectrum:
        """The spectrum of A + cI.

        Args:
            by: c.
        """
        return replace(self, smallest=self.smallest + by, largest=self.largest + by)


@dataclass(frozen=True, eq=False)
class Factorisation:
    """A V = V T + βveᵀ with orthonormal columns V, T tridiagonal, v a unit vector and e the last one.

    Attributes:
        basis: The columns of V.
        diagonal: Of T.
        offdiagonal: Of T; one entry fewer.
        beta: β.
    """

    basis: Sequence[Tensor]
    diagonal: Sequence[float]
    offdiagonal: Sequence[float]
    beta: float


def extreme_eigenvalues(product: Product, size: int, *, steps: int, like: Tensor, seed: int = 0) -> Spectrum:
    """Both ends of the spectrum, from the Ritz pairs of a Lanczos factorisation.

    Args:
        product: v ↦ Av on flat vectors.
        size: Dimensions of A.
        steps: Dimensions of the Krylov space, at most; each is a product. Two more measure the residuals.
        like: A tensor of the device and precision in which products are taken.
        seed: Of the start vector.

    Raises:
        NumericsError: A product is not finite.

    >>> matrix = torch.diag(torch.tensor([-1.0, 2.0, 5.0]))
    >>> spectrum = extreme_eigenvalues(lambda v: matrix @ v, 3, steps=30, like=matrix)
    >>> round(spectrum.smallest, 5), round(spectrum.largest, 5), spectrum.exact
    (-1.0, 5.0, True)
    """
    start = torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(like)
    factors = lanczos(product, start, min(steps, size))
    values, vectors = eigh_tridiagonal(factors.diagonal, factors.offdiagonal)
    (smallest, smallest_error), (largest, largest_error) = (
        (float(values[end]), _residual(product, factors.basis, vectors[:, end], float(values[end]))) for end in (0, -1)
    )
    steps = len(factors.basis)
    exact = steps == size or factors.beta <= INVARIANT * max(abs(smallest), abs(largest), INVARIANT)
    return Spectrum(smallest, smallest_error, largest, largest_error, steps, exact)


def lanczos(product: Product, start: Tensor, steps: int) -> Factorisation:
    """Lanczos' method with full orthogonalisation: each basis vector against all before it, twice.

    Args:
        product: v ↦ Av.
        start: The first basis vector, of any length.
        steps: Dimensions of the Krylov space, at most; fewer where it is invariant before.

    Raises:
        NumericsError: A product is not finite.
    """
    basis = [start / start.norm()]
    diagonal: list[float] = []
    lengths: list[float] = []
    while True:
        image = product(basis[-1])
        diagonal.append(float(image @ basis[-1]))
        for _ in range(2):  # twice is enough to be orthogonal to rounding
            for vector in basis:
                image = image - (image @ vector) * vector
        lengths.append(float(image.norm()))
        if not math.isfinite(lengths[-1]):
            raise NumericsError(
                "The eigenvalues of the Hessian cannot be computed: a product with it is not finite.",
                where=f"product {len(basis)}, {len(start)} dimensions",
                fix="Check that the weights and losses of the run are finite.",
            )
        scale = max(abs(value) for value in diagonal)
        if len(basis) == steps or lengths[-1] <= INVARIANT * max(scale, INVARIANT):
            return Factorisation(basis, diagonal, lengths[:-1], lengths[-1])
        basis.append(image / lengths[-1])


def _residual(product: Product, basis: Sequence[Tensor], weights: Sequence[float], value: float) -> float:
    """‖Ax − θx‖ of the Ritz vector x = V s. The recursion's β|s_m| is far below it in float32."""
    vector = torch.zeros_like(basis[0])
    for weight, column in zip(weights, basis, strict=True):
        vector += float(weight) * column
    return float((product(vector) - value * vector).norm())
