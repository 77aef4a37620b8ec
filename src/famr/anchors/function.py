"""Hold the answers and not the weights: on a few images the model is to say what the original said."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count

import torch
from torch import Tensor, nn

from famr.batches import Batch, Batches
from famr.metrics.forgetting import kl_divergence


class FunctionAnchor:
    """A = mean KL(p_θ₀ ‖ p_θ) over kept images. Needs a few retained images, or others like them.

    Each gradient is taken on the next batch of a shuffled round through the images.
    """

    def __init__(self, logits: Callable[[Tensor], Tensor], batches: Batches, seed: int) -> None:
        self._logits = logits
        self._batches = batches
        self._rounds = self._endless(seed)
        with torch.no_grad():
            found = [logits(batch.images) for batch in batches(None)]  # in the order of the set
        self._original = torch.cat(found)

    def _endless(self, seed: int) -> Iterator[Batch]:
        for turn in count():
            yield from self._batches(seed * 1_000_003 + turn)

    def _divergence(self, batch: Batch) -> Tensor:
        original = self._original[batch.positions.to(self._original.device)]
        return kl_divergence(original, self._logits(batch.images))

    def remembered(self) -> Iterator[tuple[Batch, Tensor, int]]:
        """All kept images in batches, the original's answers to them, and how many images there are."""
        for batch in self._batches(None):
            yield batch, self._original[batch.positions.to(self._original.device)], len(self._original)

    @torch.no_grad()
    def penalty(self, parameters: Sequence[nn.Parameter]) -> Tensor:  # noqa: ARG002
        """Mean KL(p_θ₀ ‖ p_θ) over all kept images."""
        return torch.cat([self._divergence(batch) for batch in self._batches(None)]).mean()

    def gradient(self, parameters: Sequence[nn.Parameter]) -> Sequence[Tensor]:
        """Its gradient on the next batch."""
        divergence = self._divergence(next(self._rounds)).mean()
        found = torch.autograd.grad(divergence, list(parameters), allow_unused=True)
        return [
            torch.zeros_like(p) if gradient is None else gradient for p, gradient in zip(parameters, found, strict=True)
        ]
