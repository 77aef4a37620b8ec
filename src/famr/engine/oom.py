"""Out-of-memory handling: batches are split into micro-batches, and the result stays the same.

The network is in evaluation mode, so that an image's loss does not depend on the rest of its batch: the gradient of a
batch is the sum of those of its micro-batches, up to the order of the sum. Where a single image is still too much, its
activations wait for the backward pass in the host's memory.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from famr.data.loaders import Batch
from famr.engine.base import BatchLoss, Result
from famr.errors import NumericsError, is_out_of_memory

DERIVATIVE_BYTES = 4 << 30
"""Bytes that per-image or second derivatives of a few dozen images may take; far more than a small network needs."""
LARGEST_FACTOR = 16


def derivative_batch_size(smallest: int, device: torch.device) -> int:
    """Images at a time for per-image or second derivatives: up to 16 times `smallest` where a GPU has free memory.

    Args:
        smallest: A size that fits any device.
        device: Where they are computed.
    """
    if device.type != "cuda":
        return smallest
    free, _total = torch.cuda.mem_get_info(device)
    return int(smallest * min(LARGEST_FACTOR, max(1, free // DERIVATIVE_BYTES)))


def micro_batches(batch: Batch, parts: int) -> list[tuple[Batch, float]]:
    """A batch in parts of one size, the last of which may be smaller; each with its share of the images.

    Args:
        batch: The batch.
        parts: Number of parts, at most.

    >>> batch = Batch(torch.zeros(5, 1), torch.arange(5), torch.arange(5))
    >>> [(part.labels.tolist(), share) for part, share in micro_batches(batch, 2)]
    [([0, 1, 2], 0.6), ([3, 4], 0.4)]
    """
    size = -(-len(batch.labels) // parts)
    pieces = zip(*(torch.split(tensor, size) for tensor in batch), strict=True)
    return [(Batch(*piece), len(piece[1]) / len(batch.labels)) for piece in pieces]


def map_in_halves(compute: Callable[[Batch], Result], batch: Batch) -> list[Result]:
    """`compute` of a batch, or of its halves one after the other where memory does not hold the whole.

    Args:
        compute: A function of a batch, without a graph.
        batch: The batch.

    Returns:
        One result, or those of the parts in order.
    """
    try:
        return [compute(batch)]
    except RuntimeError as error:
        if not is_out_of_memory(error) or len(batch.labels) == 1:
            raise
    return [result for half, _ in micro_batches(batch, 2) for result in map_in_halves(compute, half)]


def halve_on_oom(compute: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    """The same for a function of images; its rows in one tensor.

    Args:
        compute: A function without a graph that gives one row an image.
        images: Its argument.
    """
    parts = map_in_halves(lambda batch: compute(batch.images), Batch(images, images, images))
    return torch.cat(parts) if len(parts) > 1 else parts[0]


class MicroBatches:
    """The gradient of a batch in as many micro-batches as memory needs; their number never falls.

    Attributes:
        parts: Micro-batches of a batch.
    """

    def __init__(self) -> None:
        self.parts = 1
        self._activations_on_host = self._warned = False

    def gradient(
        self, loss: BatchLoss, batch: Batch, parameters: Sequence[nn.Parameter]
    ) -> tuple[Tensor, list[Tensor]]:
        """The loss of a batch and its gradient; more micro-batches are tried where memory runs out.

        Args:
            loss: A loss whose sum or mean over images splits over micro-batches.
            batch: The batch.
            parameters: In which the gradient is taken.

        Raises:
            NumericsError: There is too little memory for a single image.
        """
        while True:
            try:
                result = self._accumulate(loss, batch, parameters)
                break
            except RuntimeError as error:
                capturing = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
                if not is_out_of_memory(error) or capturing:
                    raise
                reason = str(error).splitlines()[0]
            self._use_less_memory(batch, reason)  # outside of `except`, which keeps the graph alive
        if self.parts > 1 and not self._warned:
            self._warned = True
            warnings.warn(
                f"Memory ran out; each batch is split into {self.parts} micro-batches, or more if it runs out again. "
                "The result is the same, it takes longer.",
                stacklevel=2,
            )
        return result

    def _accumulate(
        self, loss: BatchLoss, batch: Batch, parameters: Sequence[nn.Parameter]
    ) -> tuple[Tensor, list[Tensor]]:
        parts = [(batch, 1.0)] if self.parts == 1 else micro_batches(batch, self.parts)
        total, gradient = None, None
        with torch.autograd.graph.save_on_cpu() if self._activations_on_host else nullcontext():
            for part, share in parts:
                value = loss(part) * share if loss.reduction == "mean" and share != 1 else loss(part)
                piece = gradient_of(value, parameters)
                total = value.detach() if total is None else total + value.detach()
                gradient = piece if gradient is None else [a + b for a, b in zip(gradient, piece, strict=True)]
        assert total is not None
        assert gradient is not None
        return total, gradient

    def _use_less_memory(self, batch: Batch, reason: str) -> None:
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if self.parts < len(batch.labels):
            self.parts = min(2 * self.parts, len(batch.labels))
        elif not self._activations_on_host and batch.images.device.type != "cpu":
            self._activations_on_host = True
        else:
            raise NumericsError(
                "There is not enough memory, even for one image at a time.",
                where=reason,
                fix="Use a device with more memory, or --device cpu. Nothing was written; the original is unchanged.",
            )


def gradient_of(loss: Tensor, parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """∇loss, with zeros for a parameter that the loss does not depend on.

    Args:
        loss: A number with a graph.
        parameters: In which the gradient is taken.

    >>> w, unused = nn.Parameter(torch.tensor(3.0)), nn.Parameter(torch.ones(1))
    >>> gradient_of(w.square(), [w, unused])
    [tensor(6.), tensor([0.])]
    """
    gradient = torch.autograd.grad(loss, list(parameters), allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, gradient, strict=True)]
