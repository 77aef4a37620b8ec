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


@dataclass(frozen=True)
class Plan:
    """A run is about to start; a progress event.

    Attributes:
        why: The settings that were picked, why, and what they cost; empty where none was open.
        steps: Of each trial.
    """

    why: str
    steps: int


@dataclass(frozen=True)
class ProxyStep:
    """A step of the training of a proxy was taken; a progress event.

    Attributes:
        step: Steps so far.
        steps: Steps of the whole training.
    """

    step: int
    steps: int
