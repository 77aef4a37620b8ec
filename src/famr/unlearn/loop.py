"""Alg. 1: the one optimisation loop.

    θ ← θ − η · (∇L_forget(θ; batch of T) + λ∇A(θ, θ₀))        the paper's anchor: ∇A = θ − θ₀

The network stays in evaluation mode throughout: dropout is off, and BatchNorm neither uses nor changes batch
statistics, so that nothing moves but what the gradient moves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from famr.anchors import AnchorTerm, FunctionAnchor
from famr.config import FAMR
from famr.data.loaders import Batch, Batches
from famr.engine.anchored_step import anchored_step, held_plainly
from famr.engine.distributed import ALONE, Ranks
from famr.engine.finite import require_finite
from famr.engine.graphs import Captured
from famr.engine.oom import Scarce, gradients_are_in_the_way, let_go, micro_batches
from famr.engine.together import held_together
from famr.engine.waking import awake
from famr.models.layers import trainable
from famr.optim.natural import cosine, get_ready, natural_step
from famr.runs.resume import optimiser_tensors, restore_optimiser

WARM_UP = 0.1
"""The share of Adam's steps in which η rises."""
ADAM = (0.9, 0.99)
"""Adam's memory of the gradient and of its square: the square is forgotten sooner than usual, as runs are short."""

BUSY = 10_000_000_000
"""Weights times images of a step, from which on a GPU works on a step for longer than Python: on an H200 a ViT-Ti with
250 images stays below it and waits for Python, a ViT-L does not, and a ViT-B is about as quick either way."""

ForgetLoss = Callable[[Batch], Tensor]
"""L_forget of one batch, with a graph [FAMR, Eq. (5)]."""


@dataclass(frozen=True)
class Step:
    """One step was taken; a progress event."""

    epoch: int
    step: int


@dataclass(frozen=True)
class Epoch:
    """One pass over the forget set is done: how many steps so far, and the seconds spent in them."""

    epoch: int
    steps: int
    seconds: float
    state: Mapping[str, Tensor] = field(default_factory=dict)
    """What the loop would have to begin with to go on from here."""


def minimise(
    module: nn.Module,
    anchors: Sequence[AnchorTerm],
    loss: ForgetLoss,
    batches: Batches,
    batches_per_epoch: int,
    method: FAMR,
    seed: int,
    on_step: Callable[[Step], None] | None = None,
    begun: Epoch | None = None,
    ranks: Ranks = ALONE,
) -> Iterator[Epoch]:
    """Run Alg. 1 on `module` in place; hand back control after each epoch. `begun`: go on from the end of that one."""
    parameters = trainable(module)
    device = parameters[0].device
    rate = torch.zeros((), device=device)
    optimiser = None if method.optimiser == "natural" else make_optimiser(parameters, method, rate)
    held = [anchor for anchor, _ in anchors if isinstance(anchor, FunctionAnchor)]
    original = held_plainly(method, anchors) if ranks.size == 1 else None
    together = held_together(loss, anchors, method) if ranks.size == 1 else None
    apart = [each for each in anchors if together is None or each.anchor is not together.anchor]
    scarce, in_the_way = Scarce(module, held), gradients_are_in_the_way(parameters)
    module.eval()

    def step(batch: Batch) -> Tensor:
        scarce.begin()
        if in_the_way:
            let_go(parameters)
        others = anchors
        if together is not None and scarce.parts == 1 and together.fits(batch):
            forget_loss, others = together.backward(batch, parameters), apart
        else:
            forget_loss = backward(loss, batch, scarce.parts, method, parameters)  # g_forget ← ∇L_forget(θ)
        ranks.add_up(parameters)
        if original is not None:  # the same as below, for many weights at once
            scarce.about_to_move()
            anchored_step(parameters, original, method.settled_rate, anchors[0].strength)
        elif optimiser is None:
            natural_step(parameters, others, forget_loss, rate, scarce.about_to_move)
        else:
            if method.optimiser == "adamw":
                scarce.about_to_move()
            pull_to_anchors(parameters, others, rate, method)  # g_anchor ← λ∇A(θ, θ₀), in the paper λ(θ − θ₀)
            scarce.about_to_move()
            optimiser.step()  # θ ← θ − η·(g_forget + g_anchor)
        return forget_loss

    weights = sum(parameter.numel() for parameter in parameters)
    captured = capturing(lambda *parts: step(Batch(*parts)), device, method, weights) if ranks.size == 1 else None

    def take(batch: Batch, left: int) -> Tensor:
        """The step, by the quickest way there is, and with the memory there is."""
        sizes = (len(batch.images), *(anchor.draw() for anchor in held))
        if ranks.size > 1:
            return step(batch)
        way = partial(step, batch) if captured is None else partial(captured, batch, sizes, left)
        return scarce.taken(way, max(sizes))

    begun = begun or Epoch(epoch=0, steps=0, seconds=0.0)
    _go_on(begun, parameters, optimiser, anchors)
    steps, seconds, whole = begun.steps, begun.seconds, method.settled_epochs * batches_per_epoch
    with closing(scarce):
        start = time.perf_counter()
        if optimiser is None:
            get_ready(anchors)
        seconds += time.perf_counter() - start
        for epoch in range(begun.epoch + 1, method.settled_epochs + 1):
            start = time.perf_counter()
            losses: list[Tensor] = []
            places: list[Tensor] = []
            for batch in batches(epoch_seed(seed, epoch)):
                now = rate_at(steps, whole, method)
                rate.fill_(now)
                if optimiser is not None:
                    set_rate(optimiser, now)
                losses.append(take(batch, whole - steps))
                places.append(batch.positions)
                steps += 1
                if on_step is not None:
                    on_step(Step(epoch, steps))
            require_finite(losses, places, module, epoch)  # also waits for the device
            seconds += time.perf_counter() - start
            yield Epoch(epoch, steps, seconds, _state(parameters, optimiser))


def capturing(step: Callable[..., Tensor], device: torch.device, method: FAMR, weights: int) -> Captured | None:
    """On CUDA, the steps as they are captured and replayed; `weights` are those that may change.

    The first one too, where libraries are awake and nothing is made in it alone, as Adam makes its averages; but not
    where the device has so much to do in plain steps that one can be captured meanwhile: behind the second, as Python
    is slow in the first of a process.
    """
    if device.type != "cuda":
        return None
    if weights * method.batch_size >= BUSY:
        return Captured(step, device, plain=2, behind=True)
    at_once = awake(device) and method.optimiser in ("sgd", "natural")
    return Captured(step, device, plain=0 if at_once else 1)


def backward(loss: ForgetLoss, batch: Batch, parts: int, method: FAMR, parameters: Sequence[nn.Parameter]) -> Tensor:
    """Leave ∇L_forget of a batch in the parameters, of one part of it after another; L_forget."""
    if parts == 1:
        whole = loss(batch)
        let_go(parameters)
        whole.backward()  # type: ignore[no-untyped-call]
        return whole.detach()
    let_go(parameters)
    total = torch.zeros((), device=batch.images.device)
    for part, share in micro_batches(batch, parts):
        piece = loss(part) * (share if method.reduction == "mean" else 1.0)
        piece.backward()  # type: ignore[no-untyped-call]
        total += piece.detach()
    return total


def _state(parameters: Sequence[nn.Parameter], optimiser: torch.optim.Optimizer | None) -> dict[str, Tensor]:
    weights = {f"weight.{place}": parameter for place, parameter in enumerate(parameters)}
    return {**weights, **optimiser_tensors(optimiser)}


@torch.no_grad()
def _go_on(
    begun: Epoch,
    parameters: Sequence[nn.Parameter],
    optimiser: torch.optim.Optimizer | None,
    anchors: Sequence[AnchorTerm],
) -> None:
    """Put everything where it was at the end of an epoch; the anchors draw what they had drawn."""
    if begun.state:
        for place, parameter in enumerate(parameters):
            parameter.copy_(begun.state[f"weight.{place}"])
        restore_optimiser(optimiser, begun.state)
    for anchor, _ in anchors:
        if isinstance(anchor, FunctionAnchor):
            for _ in range(begun.steps):
                anchor.draw()


def make_optimiser(parameters: Sequence[nn.Parameter], method: FAMR, rate: Tensor) -> torch.optim.Optimizer:
    """The step of Alg. 1, or Adam's; never weight decay, which would pull to 0 what the anchor holds at θ₀."""
    if method.optimiser == "sgd":
        return torch.optim.SGD(parameters, lr=method.settled_rate)
    if rate.device.type == "cuda":  # η is read from the device, so that a captured step sees it change
        return torch.optim.Adam(parameters, lr=rate, betas=ADAM, capturable=True)
    return torch.optim.Adam(parameters, lr=method.settled_rate, betas=ADAM)


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """η of the next step; where it is read from the device a captured step sees it change."""
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def rate_at(step: int, steps: int, method: FAMR) -> float:
    """η of a step: the same throughout for plain SGD, as in Alg. 1; else it falls along a cosine.

    Adam knows little about the gradient at first, so that it begins with small steps, for a tenth of them.
    """
    if method.optimiser == "sgd":
        return method.settled_rate
    warm = 1.0 if method.optimiser == "natural" else min(1.0, (step + 1) / (WARM_UP * steps))
    return method.settled_rate * warm * cosine(step, steps)


def pull_to_anchors(
    parameters: Sequence[nn.Parameter], anchors: Sequence[AnchorTerm], rate: Tensor, method: FAMR
) -> None:
    """Add λ∇A(θ, θ₀) to the gradient; no graph is built through it.

    For `adamw` the pull is decoupled, as its weight decay is: θ ← θ − ηλ∇A, past Adam's scaling. Its resting points
    are then not those of Eq. (6).
    """
    for anchor, strength in anchors:
        pulls = anchor.gradient(parameters)
        with torch.no_grad():
            for parameter, pull in zip(parameters, pulls, strict=True):
                if method.optimiser == "adamw":
                    parameter.sub_(rate * strength * pull)
                elif parameter.grad is None:  # a weight the forgetting loss does not see
                    parameter.grad = strength * pull
                else:
                    parameter.grad.add_(pull, alpha=strength)


def epoch_seed(seed: int, epoch: int) -> int:
    """A seed for the order of one epoch; no two (seed, epoch) of reasonable size share one."""
    return seed * 1_000_003 + epoch
