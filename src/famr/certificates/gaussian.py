"""(ε, δ)-indistinguishability of two Gaussians of one width, exactly [Balle & Wang 2018, Thm. 5].

`shift` is the distance of the two means in standard deviations; the number of dimensions does not matter.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch

HALVINGS = 100
"""More than enough to find a double to its last bits."""


def delta_of(shift: float, epsilon: float) -> float:
    """The least δ with P(S) ≤ e^ε·Q(S) + δ for all S, where P and Q are Gaussians [Balle & Wang 2018, Thm. 5].

    δ = Φ(s/2 − ε/s) − e^ε·Φ(−s/2 − ε/s), the same for P and Q exchanged. At ε = 0 it is the total variation.

    Args:
        shift: s.
        epsilon: ε.

    >>> delta_of(0.0, 1.0), round(delta_of(2.0, 0.0), 6)  # 2Φ(1) − 1
    (0.0, 0.682689)
    """
    if shift <= 0:
        return 0.0
    near, far = _log_normal_cdf(shift / 2 - epsilon / shift), _log_normal_cdf(-shift / 2 - epsilon / shift)
    return max(0.0, math.exp(near) - math.exp(epsilon + far))


def epsilon_of(shift: float, delta: float) -> float:
    """The least ε ≥ 0 that a shift allows at this δ.

    Args:
        shift: s.
        delta: δ.

    >>> epsilon_of(0.0, 1e-5), round(delta_of(0.5, epsilon_of(0.5, 1e-5)), 12)
    (0.0, 1e-05)
    """
    if delta_of(shift, 0) <= delta:
        return 0.0
    high = 1.0
    while delta_of(shift, high) > delta:
        high *= 2
    return _bisect(lambda epsilon: delta_of(shift, epsilon) > delta, 0.0, high)[1]


@functools.cache
def largest_shift(epsilon: float, delta: float) -> float:
    """The largest shift that is still (ε, δ)-indistinguishable.

    Args:
        epsilon: ε.
        delta: δ.

    >>> shift = largest_shift(1.0, 1e-5)
    >>> round(shift, 4), round(epsilon_of(shift, 1e-5), 9)
    (0.2681, 1.0)
    """
    high = 1.0
    while delta_of(high, epsilon) <= delta:
        high *= 2
    return _bisect(lambda shift: delta_of(shift, epsilon) <= delta, 0.0, high)[0]


def _bisect(holds: Callable[[float], bool], low: float, high: float) -> tuple[float, float]:
    """Where `holds`, true at `low` and false at `high`, changes: the last value on each side."""
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, high


def _log_normal_cdf(x: float) -> float:
    """log Φ(x), precise in the far tail."""
    return float(torch.special.log_ndtr(torch.tensor(x, dtype=torch.float64)))
