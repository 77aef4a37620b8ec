"""Gradient steps as the alternatives take them: how many, how long, and with which optimiser."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from famr.baselines.alternative import Row
from famr.baselines.work import Work
from famr.data.augmentation import Augmentation
from famr.engine.finite import all_finite
from famr.errors import NumericsError, RequestError
from famr.models.layers import trainable
from famr.optim.schedules import constant, cosine
from famr.training.steps import GradientSteps, Loss

Stepper = Literal["sgd", "adam"]
Schedule = Literal["cosine", "constant"]
RATES = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1)
"""Learning rates to try of SGD on batches of all classes."""


@dataclass(frozen=True)
class Steps:
    """SGD with momentum, or Adam. An epoch is a pass over the retained images, or over the forget set where a method
    uses nothing else."""

    epochs: int
    learning_rate: float
    batch_size: int = 256
    optimiser: Stepper = "sgd"
    momentum: float = 0.9
    weight_decay: float = 5e-4
    schedule: Schedule = "cosine"
    """`cosine` falls to zero at the last step. The papers rarely name one; this keeps more than a constant rate."""
    augmentation: Augmentation | None = None
    """Random views of the images, as the original was trained with; None: the images as they are."""

    def __post_init__(self) -> None:
        for name, holds, must in (
            ("epochs", isinstance(self.epochs, int) and self.epochs >= 1, "a whole number, at least 1"),
            ("learning_rate", 0 < self.learning_rate < math.inf, "above 0"),
            ("batch_size", isinstance(self.batch_size, int) and self.batch_size >= 1, "a whole number, at least 1"),
            ("optimiser", self.optimiser in get_args(Stepper), "sgd or adam"),
            ("momentum", 0 <= self.momentum < 1, "from 0 to 1"),
            ("weight_decay", 0 <= self.weight_decay < math.inf, "at least 0"),
            ("schedule", self.schedule in get_args(Schedule), "cosine or constant"),
        ):
            if not holds:
                raise RequestError(f"`{name}` must be {must}, got {getattr(self, name)!r}.", where="Steps")

    def at(self, rates: Iterable[float]) -> Iterator[Steps]:
        """The same at other learning rates."""
        return (replace(self, learning_rate=rate) for rate in rates)


class Descent:
    """Gradient steps of a baseline and their history.

    Args:
        work: The copy that is changed.
        steps: How steps are taken.
        count: Steps in all, for the schedule.
        parameters: θ; None: all trainable parameters.
        after: Called after each step.
    """

    def __init__(
        self,
        work: Work,
        steps: Steps,
        count: int,
        parameters: Sequence[Tensor] | None = None,
        after: Callable[[], None] | None = None,
    ) -> None:
        self._work, self._steps, self._count = work, steps, count
        self._parameters = list(trainable(work.model.module) if parameters is None else parameters)
        self._losses: list[Tensor] = []
        self._image_passes: dict[tuple[Loss, tuple[torch.Size, ...]], int] = {}
        optimiser = make_optimiser(self._parameters, steps, work.device)
        self._gradient_steps = GradientSteps(self._parameters, optimiser, self._rate, work.device, after=after)
        self.rate_factor = 1.0
        """A factor on the learning rate, for methods with a schedule of their own."""

    @property
    def taken(self) -> int:
        """Steps so far."""
        return self._gradient_steps.taken

    def _rate(self, step: int) -> float:
        schedule = cosine if self._steps.schedule == "cosine" else constant
        return self._steps.learning_rate * schedule(step, self._count) * self.rate_factor

    def step(self, loss: Loss, *tensors: Tensor) -> None:
        """Take one step, θ ← θ − η∇L in the way of the optimiser.

        Args:
            loss: L, the same function object for all steps of one kind. A replayed step does not call it.
            *tensors: Its arguments: all that differs from step to step.
        """
        before = self._work.image_passes
        self._losses.append(self._gradient_steps.take(loss, tensors))
        key = (loss, tuple(tensor.shape for tensor in tensors))
        passes = self._image_passes.setdefault(key, self._work.image_passes - before)  # a replayed step counts none
        self._work.image_passes = before + passes

    def end_of(self, phase: str) -> None:
        """Note a finished pass; an error where a loss or a weight is no longer a number."""
        mean = torch.stack(self._losses).mean()
        self._losses.clear()
        if not all_finite([mean, *self._parameters]):
            raise NumericsError(
                f"The loss or a weight of {self._work.method} is no longer a finite number.",
                where=f"{phase}, step {self.taken}",
                fix=f"Lower its learning rate, now {self._steps.learning_rate:g}, or use fp32. "
                "The original is unchanged.",
            )
        self._work.history.append(Row(phase, self.taken, float(mean), self._work.meter.seconds))


def make_optimiser(parameters: Sequence[Tensor], steps: Steps, device: torch.device) -> torch.optim.Optimizer:
    """SGD or Adam; on CUDA with η in a tensor, which recorded steps read anew.

    Args:
        parameters: θ.
        steps: Which optimiser, and its numbers.
        device: Where θ is.
    """
    recorded = device.type == "cuda"
    rate = torch.tensor(steps.learning_rate, device=device) if recorded else steps.learning_rate
    decay, fused = steps.weight_decay, recorded or None  # the fused kernels take η as a tensor
    if steps.optimiser == "adam":
        return torch.optim.Adam(parameters, lr=rate, weight_decay=decay, fused=fused, capturable=recorded)
    return torch.optim.SGD(parameters, lr=rate, momentum=steps.momentum, weight_decay=decay, fused=fused)
