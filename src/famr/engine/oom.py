"""Memory that runs out: batches are taken in parts, then blocks are computed twice; the result is the same.

An image's loss does not depend on the others of its batch, as the network is in evaluation mode. So the gradient of a
batch is the sum of those of its parts, up to the order of the sum. Only where one image is still too much are the
activations inside each block thrown away and computed again on the way back, which takes a third longer.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from famr.data.loaders import Batch
from famr.engine.bf16 import Standing, standing, weights_standing
from famr.engine.lean import LeanBackward
from famr.errors import NumericsError, is_out_of_memory
from famr.models.layers import blocks

MEMORY_OF_A_PART = 4 << 30
"""Bytes that first or second derivatives of a few dozen images may take; far more than a small network needs."""
LARGER = 16
FEW_GRADIENTS = 16 << 20
"""Bytes of gradients that a CPU may keep from step to step: more take memory, and save next to nothing of a step."""


def part_size(few: int, device: torch.device) -> int:
    """Images at a time: a few, and more where there is memory, as a small network keeps a GPU waiting."""
    if device.type != "cuda":
        return few
    free, _total = torch.cuda.mem_get_info(device)
    return int(few * min(LARGER, max(1, free // MEMORY_OF_A_PART)))


def micro_batches(batch: Batch, parts: int) -> list[tuple[Batch, float]]:
    """A batch in so many parts, as equal as can be, each with its share of the images.

    >>> batch = Batch(torch.zeros(5, 1), torch.arange(5), torch.arange(5))
    >>> [(part.labels.tolist(), share) for part, share in micro_batches(batch, 2)]
    [([0, 1, 2], 0.6), ([3, 4], 0.4)]
    """
    size = -(-len(batch.labels) // parts)
    pieces = zip(*(torch.split(each, size) for each in batch), strict=True)
    return [(Batch(*piece), len(piece[1]) / len(batch.labels)) for piece in pieces]


def halve_on_oom(answer: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    """The answers to images, without gradients; to half of them at a time where memory does not hold all."""
    try:
        return answer(images)
    except RuntimeError as error:
        if not is_out_of_memory(error) or len(images) == 1:
            raise
    return torch.cat([halve_on_oom(answer, half) for half in torch.split(images, -(-len(images) // 2))])


def let_go(parameters: Sequence[nn.Parameter]) -> None:
    """Forget the gradients of the step before."""
    for parameter in parameters:
        parameter.grad = None


def gradients_are_in_the_way(parameters: Sequence[nn.Parameter]) -> bool:
    """Whether those of the step before are to go before anything else, and not when new ones are about to be made.

    On a CPU those of a small network had better stay: the system would take the memory back, and clear it before it
    hands it out again, page by page, which takes a good part of a step of few images.
    """
    small = sum(parameter.nbytes for parameter in parameters) <= FEW_GRADIENTS
    return not (small and parameters[0].device.type == "cpu")


class InParts(Protocol):
    """Whatever else takes batches of its own, and cuts them into as many parts."""

    parts: int


class Scarce:
    """How a run makes do with the memory there is; as long as there is enough it changes nothing."""

    def __init__(self, module: nn.Module, others: Sequence[InParts] = ()) -> None:
        self._module, self._others = module, others
        self.parts = 1
        """Into how many parts each batch is cut."""
        self._recomputing = ExitStack()
        self._recomputes = False
        self._moves = False

    def begin(self) -> None:
        """A step begins anew; one that was only written down before has moved nothing."""
        self._moves = False

    def about_to_move(self) -> None:
        """What has begun to change the weights cannot be begun again."""
        self._moves = True

    def taken(self, step: Callable[[], Tensor], images: int) -> Tensor:
        """Take a step of so many images; where memory runs out before it moves the weights, more thriftily."""
        while True:
            self.begin()
            try:
                return step()
            except RuntimeError as error:
                if not is_out_of_memory(error) or self._moves:
                    raise
                told = str(error).splitlines()[0]
            self._economise(images, told)  # outside of `except`, which would keep everything of the step alive

    def _economise(self, images: int, told: str) -> None:
        self._module.zero_grad()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if self.parts < images:
            self.parts = min(2 * self.parts, images)
            for other in self._others:
                other.parts = self.parts
            how = f"each batch is taken in {self.parts} parts"
        elif not self._recomputes:
            self._recomputing.enter_context(recomputed(self._module))
            self._recomputes = True
            how = "one image at a time, each block computed twice"
        else:
            raise NumericsError(
                "There is not enough memory, even for one image at a time.",
                where=told,
                fix="Use a device with more memory, or --device cpu. Nothing was written; the original is unchanged.",
            )
        warnings.warn(f"Memory ran out; {how}. The result is the same, it takes longer.", stacklevel=2)

    def close(self) -> None:
        """Leave the network as it was."""
        self._recomputing.close()


def _same_ways(block: nn.Module) -> tuple[AbstractContextManager[object], AbstractContextManager[object]]:
    """Around a block when it is computed first: what is there already. When it is computed again: the same."""
    return nullcontext(), _again_with(weights_standing(block), lean=LeanBackward.lasting > 0)


@contextmanager
def _again_with(weights: Standing, lean: bool) -> Iterator[None]:
    with standing(weights), LeanBackward() if lean else nullcontext():
        yield


@contextmanager
def recomputed(module: nn.Module) -> Iterator[None]:
    """Each block keeps its input alone, and is computed again for the gradient."""
    found = [module] if isinstance(module, nn.Sequential) else list(blocks(module))

    def again(block: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        def twice(*inputs: Any, **named: Any) -> Any:
            if not torch.is_grad_enabled():
                return forward(*inputs, **named)
            ways = partial(_same_ways, block)
            return checkpoint(forward, *inputs, use_reentrant=False, preserve_rng_state=False, context_fn=ways, **named)

        return twice

    for block in found:
        block.forward = again(block, block.forward)
    try:
        yield
    finally:
        for block in found:
            del block.forward
