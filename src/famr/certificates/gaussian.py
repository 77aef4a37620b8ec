"""How alike two Gaussians of one width are: the exact (ε, δ) of a shift [Balle & Wang 2018, Thm. 5].

`shift` is the distance of the two means in standard deviations. Only it counts, not the number of dimensions.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch

HALVINGS = 100
"""More than enough to find a double to its last bits."""


def delta_of(shift: float, epsilon: float) -> float:
    """The least δ with P(S) ≤ e^ε·Q(S) + δ for all S, where P and Q are Gaussians `shift` standard deviations apart.

    δ = Φ(s/2 − ε/s) − e^ε·Φ(−s/2 − ε/s), the same for P and Q exchanged. At ε = 0 it is the total variation.

    >>> delta_of(0.0, 1.0), round(delta_of(2.0, 0.0), 6)  # 2Φ(1) − 1
    (0.0, 0.682689)
    """
    if shift <= 0:
        return 0.0
    near, far = _log_normal(shift / 2 - epsilon / shift), _log_normal(-shift / 2 - epsilon / shift)
    return max(0.0, math.exp(near) - math.exp(epsilon + far))


def epsilon_of(shift: float, delta: float) -> float:
    """The least ε ≥ 0 that a shift allows at this δ.

    >>> epsilon_of(0.0, 1e-5), round(delta_of(0.5, epsilon_of(0.5, 1e-5)), 12)
    (0.0, 1e-05)
    """
    high = 1.0
    while delta_of(shift, high) > delta:
        high *= 2
    return _edge(lambda epsilon: delta_of(shift, epsilon) > delta, 0.0, high)[1] if delta_of(shift, 0) > delta else 0.0


@functools.cache
def largest_shift(epsilon: float, delta: float) -> float:
    """The largest shift that is still (ε, δ)-indistinguishable.

    >>> shift = largest_shift(1.0, 1e-5)
    >>> round(shift, 4), round(epsilon_of(shift, 1e-5), 9)
    (0.2681, 1.0)
    """
    high = 1.0
    while delta_of(high, epsilon) <= delta:
        high *= 2
    return _edge(lambda shift: delta_of(shift, epsilon) <= delta, 0.0, high)[0]


def _edge(holds: Callable[[float], bool], low: float, high: float) -> tuple[float, float]:
    """Where `holds`, true at `low` and false at `high`, changes: the last value on each side."""
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, high


def _log_normal(at: float) -> float:
    """log Φ, in the far tail too."""
    return float(torch.special.log_ndtr(torch.tensor(at, dtype=torch.float64)))
