"""Gradient steps of a baseline: their number, batch size, optimiser and schedule."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar, get_args

import torch
from torch import Tensor

from famr.baselines.base import BaselineRow
from famr.baselines.session import BaselineSession
from famr.data.augmentation import Augmentation
from famr.engine.finite import all_finite
from famr.errors import NumericsError, RequestError
from famr.models.layers import trainable
from famr.optim.schedules import constant, cosine
from famr.training.steps import GradientSteps, Loss

OptimiserName = Literal["sgd", "adam"]
ScheduleName = Literal["cosine", "constant"]
ADAM = {"optimiser": "adam", "weight_decay": 0.0}
"""Adam among the numbers to try. Its L2 term would be as large as the gradient's, so that it has none."""
Item = TypeVar("Item")


@dataclass(frozen=True)
class Steps:
    """SGD with momentum, or Adam.

    Attributes:
        epochs: Passes over the retained images, or over the forget set where a method uses nothing else.
        learning_rate: η, the peak.
        batch_size: Images of a step.
        optimiser: `sgd` or `adam`.
        momentum: Of SGD.
        weight_decay: Added to the gradient as a multiple of the weights.
        schedule: `cosine` falls to zero at the last step. The papers rarely name one; this forgets less of the
            retained classes than a constant rate.
        augmentation: Random views of the images, as the original was trained with; None: the images as they are.
        training_mode: Whether dropout is active and BatchNorm updates its statistics.
        most_steps: Limit on the steps of all epochs, with which the schedule ends; None: no limit.

    Raises:
        RequestError: A number is out of its range.
    """

    epochs: int
    learning_rate: float
    batch_size: int = 256
    optimiser: OptimiserName = "sgd"
    momentum: float = 0.9
    weight_decay: float = 5e-4
    schedule: ScheduleName = "cosine"
    augmentation: Augmentation | None = None
    training_mode: bool = False
    most_steps: int | None = None

    def __post_init__(self) -> None:
        for name, holds, must in (
            ("epochs", isinstance(self.epochs, int) and self.epochs >= 1, "a whole number, at least 1"),
            ("learning_rate", 0 < self.learning_rate < math.inf, "above 0"),
            ("batch_size", isinstance(self.batch_size, int) and self.batch_size >= 1, "a whole number, at least 1"),
            ("optimiser", self.optimiser in get_args(OptimiserName), "sgd or adam"),
            ("momentum", 0 <= self.momentum < 1, "from 0 to 1"),
            ("weight_decay", 0 <= self.weight_decay < math.inf, "at least 0"),
            ("schedule", self.schedule in get_args(ScheduleName), "cosine or constant"),
            ("most_steps", self.most_steps is None or self.most_steps >= 1, "at least 1, or None"),
        ):
            if not holds:
                raise RequestError(f"`{name}` must be {must}, got {getattr(self, name)!r}.", where="Steps")

    def within(self, steps: int, planned: int) -> Steps:
        """As many whole epochs as so many steps allow; where they allow none, so many steps of the first.

        Args:
            steps: Steps that may be taken, at least 1.
            planned: Steps of all epochs.

        >>> ten = Steps(epochs=10, learning_rate=0.1)
        >>> [(cut.epochs, cut.most_steps) for cut in (ten.within(n, planned=500) for n in (700, 170, 20))]
        [(10, None), (3, None), (10, 20)]
        """
        if steps >= planned:
            return self
        epochs = steps * self.epochs // planned
        return replace(self, epochs=epochs) if epochs else replace(self, most_steps=steps)


class Descent:
    """Gradient steps of a baseline, with a history row and a check for finite numbers after each epoch.

    Args:
        session: The model that is changed, and where the history is kept.
        steps: How steps are taken.
        total: Steps of all epochs; `steps.most_steps` may allow fewer.
        parameters: θ; None: all trainable parameters of the model.
        factor: A factor on the learning rate by the number of steps taken, besides the schedule; None: 1.
        after: Called after each step, on the device.

    Attributes:
        total: Steps in all, with which the schedule ends.
    """

    def __init__(
        self,
        session: BaselineSession,
        steps: Steps,
        total: int,
        *,
        parameters: Sequence[Tensor] | None = None,
        factor: Callable[[int], float] | None = None,
        after: Callable[[], None] | None = None,
    ) -> None:
        self._session, self._steps = session, steps
        self._parameters = list(trainable(session.model.module) if parameters is None else parameters)
        self._losses: list[Tensor] = []
        self._image_passes: dict[tuple[Loss, tuple[torch.Size, ...]], int] = {}
        session.facts["steps_planned"] = total
        self.total = total = total if steps.most_steps is None else min(total, steps.most_steps)
        schedule = cosine if steps.schedule == "cosine" else constant

        def rate(step: int) -> float:  # without `self`: recorded steps must not wait for the garbage collector
            return steps.learning_rate * schedule(step, total) * (1.0 if factor is None else factor(step))

        optimiser = make_optimiser(self._parameters, steps, session.device)
        self._gradient_steps = GradientSteps(self._parameters, optimiser, rate, session.device, after=after)

    @property
    def taken(self) -> int:
        """Steps so far."""
        return self._gradient_steps.taken

    def epochs(self, phase: str = "epoch") -> Iterator[int]:
        """Numbers of the epochs from 1 on, while there are steps left; after each one `end` is called.

        Args:
            phase: Name of an epoch in the history.
        """
        for epoch in range(1, self._steps.epochs + 1):
            if self.taken < self.total:
                yield epoch
                self.end(f"{phase} {epoch}")

    def within(self, batches: Iterable[Item]) -> Iterator[Item]:
        """Batches, while there are steps left.

        Args:
            batches: Those of an epoch; one step is taken with each.
        """
        iterator = iter(batches)
        while self.taken < self.total and (batch := next(iterator, None)) is not None:
            yield batch

    def step(self, loss: Loss, *tensors: Tensor) -> None:
        """Take one step, θ ← θ − η∇L in the way of the optimiser.

        Args:
            loss: L, the same function object for all steps of one kind. A replayed step does not call it.
            *tensors: Its arguments: all that differs from step to step.
        """
        before = self._session.image_passes
        self._losses.append(self._gradient_steps.take(loss, tensors))
        key = (loss, tuple(tensor.shape for tensor in tensors))
        passes = self._image_passes.setdefault(key, self._session.image_passes - before)  # a replay counts none
        self._session.image_passes = before + passes

    def end(self, phase: str) -> None:
        """End an epoch or phase: check its numbers and add a row to the history.

        Args:
            phase: Its name.

        Raises:
            NumericsError: A loss or a weight is not finite.
        """
        self._session.facts["steps"] = self.taken
        mean = torch.stack(self._losses).mean()
        self._losses.clear()
        if not all_finite([mean, *self._parameters]):
            raise NumericsError(
                f"The loss or a weight of {self._session.method} is no longer a finite number.",
                where=f"{phase}, step {self.taken}",
                fix=f"Lower its learning rate, now {self._steps.learning_rate:g}, or use fp32. "
                "The original is unchanged.",
            )
        self._session.history.append(BaselineRow(phase, self.taken, float(mean), self._session.meter.seconds))


def make_optimiser(parameters: Sequence[Tensor], steps: Steps, device: torch.device) -> torch.optim.Optimizer:
    """SGD or Adam; on CUDA with η in a tensor, which replayed steps read.

    Args:
        parameters: θ.
        steps: Which optimiser, and its numbers.
        device: Where θ is.
    """
    cuda = device.type == "cuda"
    rate = torch.tensor(steps.learning_rate, device=device) if cuda else steps.learning_rate
    decay, fused = steps.weight_decay, cuda or None  # the fused kernels take η as a tensor
    if steps.optimiser == "adam":
        return torch.optim.Adam(parameters, lr=rate, weight_decay=decay, fused=fused, capturable=cuda)
    return torch.optim.SGD(parameters, lr=rate, momentum=steps.momentum, weight_decay=decay, fused=fused)
