"""Learning-rate schedules.

A schedule is a pure function of the step. It returns a factor on the peak learning rate η₀: η(t) = η₀ · factor(t).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def constant(_step: int, _steps: int) -> float:
    """Return 1 at every step.

    Args:
        _step: Steps taken so far. Not used.
        _steps: Steps in all. Not used.

    Returns:
        The factor 1.

    >>> constant(3, 10)
    1.0
    """
    return 1.0


def cosine(step: int, steps: int) -> float:
    """Return (1 + cos(π·t/T)) / 2, which falls from 1 at the first step to 0 after the last.

    Args:
        step: Steps taken so far, t.
        steps: Steps in all, T. At least 1.

    Returns:
        A factor from 0 to 1.

    >>> [round(cosine(step, 4), 3) for step in (0, 1, 2, 3)]
    [1.0, 0.854, 0.5, 0.146]
    """
    return 0.5 * (1 + math.cos(math.pi * step / steps))


def warmup_cosine(step: int, steps: int, warmup_share: float) -> float:
    """Rise linearly to 1 during warm-up, then follow `cosine` over the remaining steps.

    Args:
        step: Steps taken so far.
        steps: Steps in all.
        warmup_share: The share of all steps that are warm-up, from 0 to 1.

    Returns:
        A factor from 0 to 1.

    >>> [round(warmup_cosine(step, 10, 0.2), 3) for step in (0, 1, 2, 6, 10)]
    [0.5, 1.0, 1.0, 0.5, 0.0]
    """
    warmup = round(warmup_share * steps)
    if step < warmup:
        return (step + 1) / warmup
    return cosine(step - warmup, max(1, steps - warmup))


def set_learning_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Set η of the next step.

    A learning rate that is a tensor is filled in place, so that a replayed CUDA graph reads the new value.

    Args:
        optimiser: Any torch optimiser. All of its parameter groups get the same η.
        rate: η.
    """
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
