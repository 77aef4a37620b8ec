"""Hold the answers and not the weights: on a few images the model is to say what the original said."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count

import torch
from torch import Tensor, nn

from famr.data.loaders import Batch, Batches
from famr.engine.distributed import ALONE, Ranks
from famr.engine.oom import halve_on_oom, micro_batches
from famr.metrics.forgetting import kl_divergence

MEASURED = 256
"""So many images tell the penalty well enough for a record of the run."""


class FunctionAnchor:
    """A = mean KL(p_θ₀ ‖ p_θ) over kept images. Needs a few retained images, or others like them.

    Each gradient is taken on the batch that was drawn last, from shuffled rounds through the images.
    """

    def __init__(
        self,
        logits: Callable[[Tensor], Tensor],
        batches: Batches,
        seed: int,
        ranks: Ranks = ALONE,
        whole: Batches | None = None,
    ) -> None:
        """`whole` are passes over the same images in batches that need not be differentiated through."""
        self._logits = logits
        self._ranks = ranks
        self._batches = batches
        self._rounds = self._endless(seed)
        self._places: dict[int, Batch] = {}
        self._drawn: Batch | None = None
        self.parts = 1
        """Into how many parts a batch is cut where memory is scarce."""
        with torch.no_grad():
            found = [self._said(batch) for batch in (whole or batches)(None)]  # in the order of the set
        self._original = torch.cat(found)

    def _endless(self, seed: int) -> Iterator[Batch]:
        """Round after round; what is left over at the end of one, fewer than at its start, waits for another."""
        for turn in count():
            first = 0
            for batch in self._batches(seed * 1_000_003 + turn):
                first = first or len(batch.positions)
                if len(batch.positions) >= first:
                    yield batch

    def draw(self) -> int:
        """Take the next batch, into the same place as the last of its size: a captured step reads it from there.

        How many images it has.
        """
        batch = next(self._rounds)
        size = len(batch.positions)
        if size not in self._places:
            there = batch.positions.to(batch.images.device)
            self._places[size] = Batch(batch.images.clone(), batch.labels, there.clone())
        self._drawn = self._places[size]
        self._drawn.images.copy_(batch.images)
        self._drawn.positions.copy_(batch.positions)
        return size

    def _before(self, batch: Batch) -> Tensor:
        """What the original said about a batch."""
        return self._original[batch.positions.to(self._original.device)]

    def _said(self, batch: Batch) -> Tensor:
        """The answers to a batch, without gradients."""
        return self._ranks.gather(halve_on_oom(self._logits, batch.images), len(batch.positions))

    def _answers(self, batch: Batch) -> Tensor:
        return self._ranks.gather(self._logits(batch.images), len(batch.positions))

    def _divergence(self, batch: Batch) -> Tensor:
        return kl_divergence(self._before(batch), self._answers(batch))

    def remembered(self) -> Iterator[tuple[Batch, Tensor, int]]:
        """All kept images in batches, the original's answers to them, and how many images there are."""
        for batch in self._batches(None):
            yield batch, self._before(batch), len(self._original)

    @torch.no_grad()
    def penalty(self, parameters: Sequence[nn.Parameter]) -> Tensor:  # noqa: ARG002
        """Mean KL(p_θ₀ ‖ p_θ) over the kept images, or the first of them where there are many."""
        found: list[Tensor] = []
        for batch in self._batches(None):
            found.append(kl_divergence(self._before(batch), self._said(batch)))
            if sum(map(len, found)) >= MEASURED:
                break
        return torch.cat(found).mean()

    @property
    def drawn(self) -> Batch:
        """The batch that was drawn last; the first, if none was."""
        if self._drawn is None:
            self.draw()
        assert self._drawn is not None
        return self._drawn

    def judged(self, said: Tensor) -> Tensor:
        """A of the batch that was drawn, from answers to it."""
        return kl_divergence(self._before(self.drawn), said).mean()

    def gradient(self, parameters: Sequence[nn.Parameter]) -> Sequence[Tensor]:
        """Its gradient on the batch that was drawn."""
        if self.parts == 1:
            return self._ranks.gradient(self._divergence(self.drawn).mean(), parameters)
        total = [torch.zeros_like(parameter) for parameter in parameters]
        for part, share in micro_batches(self.drawn, self.parts):
            found = self._ranks.gradient(share * self._divergence(part).mean(), parameters)
            total = [sum_ + piece for sum_, piece in zip(total, found, strict=True)]
        return total
