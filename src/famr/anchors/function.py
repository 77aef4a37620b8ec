"""The function-space anchor: on some retained images the model keeps the original's predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Self

import torch
from torch import Tensor, nn

from famr.anchors.base import Anchor, Source, require_source
from famr.data import Images
from famr.data.loaders import Batch, Batches, epoch_seed
from famr.data.splits import sample_per_class
from famr.engine.base import Session
from famr.losses.objective import Reduction
from famr.metrics.forgetting import kl_divergence

PENALTY_IMAGES = 256
"""So many images give the penalty precisely enough for a row of the history."""


class FunctionAnchor(Anchor):
    """A = mean KL(p_θ₀ ‖ p_θ) over retained images.

    Each gradient is taken on the batch that was drawn last, from shuffled passes over the images.

    Args:
        session: The network, still at θ₀.
        batches: Passes over the images in batches of a step's size.
        seed: Seed of the order of the images.
        evaluation: Passes over them without gradients; None: `batches`.

    Attributes:
        reduction: The loss of a batch is a mean, so that micro-batches of it are weighted by their size.
    """

    reduction: Reduction = "mean"

    def __init__(self, session: Session, batches: Batches, seed: int, evaluation: Batches | None = None) -> None:
        self._session, self._batches, self._seed = session, batches, seed
        self._evaluation = evaluation or batches
        self._original = session.predict(self._evaluation).logits.to(
            session.device
        )  # (images, classes), in their order
        self.restart()

    @classmethod
    def build(
        cls, session: Session, source: Source | None, per_class: int, step_size: Callable[[int], int], seed: int
    ) -> Self:
        """Build the anchor at θ₀.

        Args:
            session: The network, still at θ₀.
            source: Retained images, or others like them; batches of a user's own are used as they are.
            per_class: Images of each class, at most.
            step_size: Images of a step, by the number of images in all.
            seed: Seed of the draw of images and of their order.

        Raises:
            RequestError: There are no images.
        """
        source = require_source(source, "function")
        if not isinstance(source, Images):
            return cls(session, session.loader_batches(source), seed)
        images = sample_per_class(source, per_class, seed)
        steps = session.batches(images, step_size(len(images)))
        return cls(session, steps, seed, session.evaluation_batches(images))

    def restart(self, steps: int = 0) -> None:
        """Draw from the first batch on, as every run from θ₀ does, or from a later one on.

        Args:
            steps: Batches that the run has drawn already.
        """
        self._passes = self._endless()
        self._drawn: Batch | None = None
        for _ in range(steps):
            self.draw()

    def _endless(self) -> Iterator[Batch]:
        """Pass after pass; a short last batch is left out, so that all have one size."""
        for turn in count():
            first = 0
            for batch in self._batches(epoch_seed(self._seed, turn)):
                first = first or len(batch.positions)
                if len(batch.positions) >= first:
                    yield batch

    def draw(self) -> None:
        """Take the next batch; the session knows where a recorded step reads it."""
        self._drawn = self._session.step_input(self, next(self._passes))

    def __call__(self, batch: Batch) -> Tensor:
        """A over a batch, with a graph.

        Args:
            batch: Images of the anchor.
        """
        return self._divergence(batch).mean()

    def _divergence(self, batch: Batch) -> Tensor:
        return kl_divergence(self.original_logits(batch), self._session.logits(batch))

    def original_logits(self, batch: Batch) -> Tensor:
        """The original's logits on a batch.

        Args:
            batch: Images of the anchor.
        """
        return self._original[batch.positions.to(self._original.device)]

    def batches(self) -> Iterator[Batch]:
        """One pass over all images in order."""
        yield from self._evaluation(None)

    def __len__(self) -> int:
        return len(self._original)

    @torch.no_grad()
    def penalty(self, parameters: Sequence[nn.Parameter]) -> Tensor:  # noqa: ARG002
        """Mean KL(p_θ₀ ‖ p_θ) over the images, or batches of at least 256 of them.

        Args:
            parameters: Not read: the session's network has them.
        """
        divergences: list[Tensor] = []
        for batch in self.batches():
            divergences += self._session.in_parts(self._divergence, batch)
            if sum(map(len, divergences)) >= PENALTY_IMAGES:
                break
        return torch.cat(divergences).mean()

    def gradient(self, parameters: Sequence[nn.Parameter]) -> Sequence[Tensor]:  # noqa: ARG002
        """∇A on the batch that was drawn last.

        Args:
            parameters: Not read: the session knows them.
        """
        if self._drawn is None:
            self.draw()
        assert self._drawn is not None
        return self._session.gradient(self, self._drawn)[1]
