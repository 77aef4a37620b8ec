"""The extreme eigenvalues of a symmetric matrix that is known by its products alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh
from torch import Tensor

from famr.certificates.curvature import Product
from famr.errors import NumericsError

FEWEST_STEPS = 3
"""Both ends need a Krylov space of at least three dimensions."""


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
        exact: Whether the whole matrix was diagonalised.
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


def extreme_eigenvalues(product: Product, size: int, *, steps: int, like: Tensor, seed: int = 0) -> Spectrum:
    """Both ends of the spectrum, by one Lanczos factorisation without restarts.

    Each product is a pass over the data, so their number is fixed instead of the precision: ARPACK accepts the Ritz
    pairs of the first factorisation (`tol` is infinite), and their residuals are measured with a product each. A matrix
    of no more than `steps` dimensions is written down and diagonalised.

    Args:
        product: v ↦ Av on flat vectors.
        size: Dimensions of A.
        steps: Dimensions of the Krylov space, at least 3; a product each, and three more.
        like: A tensor of the device and precision in which products are taken.
        seed: Of the start vector.

    Raises:
        NumericsError: A is zero, or a product is not finite.

    >>> matrix = torch.diag(torch.tensor([-1.0, 2.0, 5.0]))
    >>> spectrum = extreme_eigenvalues(lambda v: matrix @ v, 3, steps=30, like=matrix)
    >>> spectrum.smallest, spectrum.largest, spectrum.exact
    (-1.0, 5.0, True)
    """
    steps = max(steps, FEWEST_STEPS)
    if steps >= size:
        return _dense_spectrum(product, size, like)

    def host_product(vector: NDArray[np.floating]) -> NDArray[np.floating]:
        return product(torch.from_numpy(vector.copy()).to(like)).cpu().numpy()

    start = torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    start_vector = start.to(like.dtype).numpy()
    operator = LinearOperator((size, size), matvec=host_product, dtype=start_vector.dtype)
    try:
        _, vectors = eigsh(operator, k=2, which="BE", ncv=steps, v0=start_vector, maxiter=1, tol=np.inf)
    except ArpackError as error:
        raise _not_computable(size) from error
    (smallest, smallest_error), (largest, largest_error) = (
        rayleigh_quotient(product, torch.from_numpy(vector.copy()).to(like)) for vector in vectors.T
    )
    return Spectrum(smallest, smallest_error, largest, largest_error, steps, exact=False)


def rayleigh_quotient(product: Product, vector: Tensor) -> tuple[float, float]:
    """θ = xᵀAx and ‖Ax − θx‖ of x = v/‖v‖: a symmetric A has an eigenvalue that close to θ.

    Args:
        product: v ↦ Av.
        vector: v.

    >>> matrix = torch.diag(torch.tensor([1.0, 3.0]))
    >>> rayleigh_quotient(lambda v: matrix @ v, torch.tensor([2.0, 0.0]))
    (1.0, 0.0)
    """
    unit = vector / vector.norm()
    image = product(unit)
    quotient = float(unit @ image)
    return quotient, float((image - quotient * unit).norm())


def _dense_spectrum(product: Product, size: int, like: Tensor) -> Spectrum:
    matrix = torch.stack([product(unit) for unit in torch.eye(size, dtype=like.dtype, device=like.device)])
    if not bool(torch.isfinite(matrix).all()):
        raise _not_computable(size)
    values = torch.linalg.eigvalsh(matrix.double().cpu())
    return Spectrum(float(values[0]), 0.0, float(values[-1]), 0.0, size, exact=True)


def _not_computable(size: int) -> NumericsError:
    return NumericsError(
        "The eigenvalues of the Hessian cannot be computed: it is zero or not finite.",
        where=f"{size} dimensions",
        fix="Check that the weights and losses of the run are finite.",
    )
