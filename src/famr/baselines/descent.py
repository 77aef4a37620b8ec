"""Gradient steps as the alternatives take them: how many, how long, and with which optimiser."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor

from famr.baselines.alternative import Row
from famr.baselines.repeated import Repeated
from famr.baselines.work import Work
from famr.data.augmentation import Augmentation
from famr.engine.finite import all_finite
from famr.errors import NumericsError, RequestError
from famr.models.layers import trainable
from famr.unlearn.loop import set_rate

Stepper = Literal["sgd", "adam"]
Schedule = Literal["cosine", "constant"]
Loss = Callable[..., Tensor]
"""A loss of the tensors that a step is given."""
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


def rate_factor(step: int, count: int, schedule: Schedule) -> float:
    """The share of the learning rate at a step of `count`.

    >>> [round(rate_factor(step, 4, "cosine"), 3) for step in range(4)]
    [1.0, 0.854, 0.5, 0.146]
    """
    return 1.0 if schedule == "constant" else 0.5 * (1 + math.cos(math.pi * step / count))


class Descent:
    """Takes steps down a loss, and notes how it went; `after` is called when each step is done."""

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
        self._after = after
        self._losses: list[Tensor] = []
        self._ways: dict[Loss, Repeated] = {}
        self._optimiser = make_optimiser(self._parameters, steps, work.device, work.captures)
        self.taken = 0
        self.slowed = 1.0
        """A factor on the learning rate, for methods with a schedule of their own."""

    def step(self, loss: Loss, *given: Tensor) -> None:
        """θ ← θ − η∇L, in the way of the optimiser.

        L is a loss of tensors: all that differs from step to step is among them, as a step may be replayed without
        `loss` being called. It is the same function in all steps of its kind.
        """
        factor = rate_factor(self.taken, self._count, self._steps.schedule)
        set_rate(self._optimiser, self._steps.learning_rate * factor * self.slowed)
        if loss not in self._ways:
            self._ways[loss] = Repeated(self._work, partial(_down, self._optimiser, self._after, loss))
        self._losses.append(self._ways[loss].take(self._count - self.taken, *given))
        self.taken += 1

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


def make_optimiser(
    parameters: Sequence[Tensor], steps: Steps, device: torch.device, captured: bool
) -> torch.optim.Optimizer:
    """SGD or Adam; where steps are captured they read η from the device, so that it can change."""
    rate = torch.tensor(steps.learning_rate, device=device) if captured else steps.learning_rate
    decay, fused = steps.weight_decay, captured or None  # of the kinds that read η, the fused one is there for both
    if steps.optimiser == "adam":
        return torch.optim.Adam(parameters, lr=rate, weight_decay=decay, fused=fused, capturable=captured)
    return torch.optim.SGD(parameters, lr=rate, momentum=steps.momentum, weight_decay=decay, fused=fused)


def _down(optimiser: torch.optim.Optimizer, after: Callable[[], None] | None, loss: Loss, *given: Tensor) -> Tensor:
    """One step down a loss; its value before. Knows nothing of the descent, which would keep its graphs too long."""
    optimiser.zero_grad()
    value = loss(*given)
    value.backward()  # type: ignore[no-untyped-call]
    optimiser.step()
    if after is not None:
        after()
    return value.detach()
