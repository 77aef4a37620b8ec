"""Progress events of trainings and runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """A step was taken; a progress event.

    Attributes:
        epoch: The pass over the training images or the forget set, from 1.
        step: Steps so far.
    """

    epoch: int
    step: int
