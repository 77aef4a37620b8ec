"""Alg. 1: the optimisation loop.

    θ ← θ − η · (∇L_forget(θ; batch of T) + λ∇A(θ, θ₀))        the paper's anchor: ∇A = θ − θ₀

The network is in evaluation mode throughout: dropout is off, and BatchNorm neither uses nor changes batch statistics.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from famr.data.loaders import Batch, epoch_seed
from famr.engine.finite import require_finite_steps
from famr.optim import OPTIMISERS
from famr.runs.events import Step
from famr.unlearn.problem import Problem


@dataclass(frozen=True)
class Epoch:
    """A pass over the forget set is done.

    Attributes:
        epoch: Its number, from 1; 0 is the state before the first step.
        steps: Steps so far.
        seconds: Time spent in them.
        state: Weights and optimiser state, from which a run can be resumed; empty at θ₀.
    """

    epoch: int
    steps: int
    seconds: float
    state: Mapping[str, Tensor] = field(default_factory=dict)


def minimise(
    problem: Problem, seed: int, start: Epoch, on_step: Callable[[Step], None] | None = None
) -> Iterator[Epoch]:
    """Run Alg. 1 on the session's network in place; yield after each pass over the forget set.

    Args:
        problem: J and its data; the network has the original's weights (line 1), or those of `start`.
        seed: Seed of the order of the images.
        start: The epoch to continue from: `Epoch(0, 0, seconds)`, or one that an earlier process finished.
        on_step: Called after each step.
    """
    session, config, anchors = problem.session, problem.config, problem.anchors
    update = OPTIMISERS[config.optimiser](session.parameters, anchors)
    _restore(problem, update.load_state, start)
    taken, seconds, total = start.steps, start.seconds, config.epochs * problem.steps_per_epoch

    def step(batch: Batch) -> Tensor:
        loss, g_forget = session.gradient(problem.objective, batch)  # lines 4-5: p_θ and g_forget ← ∇L_forget(θ)
        update.step(loss, g_forget)  # lines 6-7: g_anchor ← λ∇A(θ, θ₀), θ ← θ − η·(g_forget + g_anchor)
        return loss

    for epoch in range(start.epoch + 1, config.epochs + 1):  # line 2
        started = time.perf_counter()
        losses: list[Tensor] = []
        positions: list[Tensor] = []
        for batch in problem.steps(epoch_seed(seed, epoch)):  # line 3
            update.set_rate(update.rate_at(config.learning_rate, taken, total))
            for anchor, _ in anchors:
                anchor.draw()
            losses.append(session.run(step, batch))
            positions.append(batch.positions)
            taken += 1
            if on_step is not None:
                on_step(Step(epoch, taken))
        require_finite_steps(losses, positions, session.model.module, epoch)  # synchronises the device
        seconds += time.perf_counter() - started
        weights = {f"weight.{index}": parameter for index, parameter in enumerate(session.parameters)}
        yield Epoch(epoch, taken, seconds, {**weights, **update.state()})


@torch.no_grad()
def _restore(problem: Problem, load_state: Callable[[Mapping[str, Tensor]], None], start: Epoch) -> None:
    """Put weights, optimiser and the anchors' draws where they were at the end of an epoch."""
    if start.state:
        for index, parameter in enumerate(problem.session.parameters):
            parameter.copy_(start.state[f"weight.{index}"])
        load_state(start.state)
    for anchor, _ in problem.anchors:
        anchor.restart(start.steps)
