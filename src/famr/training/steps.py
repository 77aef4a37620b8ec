"""The training loop's step: η by a schedule, backward, clip, update; on CUDA it is recorded once and replayed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from famr.models.layers import trainable
from famr.optim.schedules import set_learning_rate

Loss = Callable[..., Tensor]
"""A function of the tensors of a step. It returns the loss, or a vector with the loss first and measures after it."""


class GradientSteps:
    """Steps of a torch optimiser down one or more losses.

    Everything that differs between two steps of one loss must be in the tensors that `take` gets, as a replayed step
    does not call the loss again.

    Args:
        parameters: θ.
        optimiser: Over these parameters.
        rate: η of a step, by the number of steps taken before it.
        device: The device of the parameters.
        clip: The largest ‖∇L‖ of a step; None: gradients are not clipped.
        after: Called after each update, on the device.
        warmup: Steps of each shape that are not recorded.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        optimiser: torch.optim.Optimizer,
        rate: Callable[[int], float],
        device: torch.device,
        *,
        clip: float | None = None,
        after: Callable[[], None] | None = None,
        warmup: int = 1,
    ) -> None:
        self.parameters, self.optimiser, self.taken = parameters, optimiser, 0
        self._rate, self._device, self._clip, self._after, self._warmup = rate, device, clip, after, warmup
        self._steps: dict[Loss, Callable[[Sequence[Tensor]], Tensor]] = {}

    @property
    def rate(self) -> float:
        """η of the next step."""
        return self._rate(self.taken)

    def take(self, loss: Loss, tensors: Sequence[Tensor]) -> Tensor:
        """Take one step.

        Args:
            loss: The same function object for all steps of one kind.
            tensors: Its arguments.

        Returns:
            What the loss returned before the update, without a graph.
        """
        set_learning_rate(self.optimiser, self.rate)
        if loss not in self._steps:
            # a function of the module, not a method: a bound one would keep the recordings in a reference cycle
            step = partial(_step, loss, self.parameters, self.optimiser, self._clip, self._after)
            self._steps[loss] = _replayed(step, self._device, self._warmup)
        values = self._steps[loss](tensors)
        self.taken += 1
        return values


def _replayed(step: Callable[..., Tensor], device: torch.device, warmup: int) -> Callable[[Sequence[Tensor]], Tensor]:
    """A step that is recorded and replayed on CUDA; elsewhere it is simply called."""
    if device.type != "cuda":
        return lambda tensors: step(*tensors)
    from famr.engine.graphs import GraphedStep

    return GraphedStep(step, device, warmup)


def _step(
    loss: Loss,
    parameters: Sequence[Tensor],
    optimiser: torch.optim.Optimizer,
    clip: float | None,
    after: Callable[[], None] | None,
    *tensors: Tensor,
) -> Tensor:
    values = loss(*tensors)
    optimiser.zero_grad()
    values.reshape(-1)[0].backward()  # type: ignore[no-untyped-call]
    if clip is not None:
        nn.utils.clip_grad_norm_(parameters, clip)
    optimiser.step()
    if after is not None:
        after()
    return values.detach()


def adamw(module: nn.Module, rate: float, decay: float, device: torch.device) -> torch.optim.AdamW:
    """AdamW over the trainable parameters; biases and normalisation do not decay.

    Args:
        module: The network.
        rate: η.
        decay: Weight decay of parameters with more than one dimension.
        device: Of the parameters; on CUDA η is a tensor, so that a recorded step reads its new value.
    """
    parameters = trainable(module)
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    if device.type == "cuda":
        return torch.optim.AdamW(groups, lr=torch.tensor(rate, device=device), fused=True, capturable=True)
    return torch.optim.AdamW(groups, lr=rate, fused=device.type == "cpu")
