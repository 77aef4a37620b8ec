"""The distributed engine: several processes share every batch, and with FSDP2 also the weights.

Each process computes the logits of its share of a batch and gathers those of the other processes, so that all of them
know the loss over the whole batch and the same metrics, and take the same decisions. The gradients are then summed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from famr.data import Images
from famr.data.loaders import Batch, Batches, LabelledImages, gradient_batch_size, image_batches, loader_batches
from famr.engine.base import BatchLoss, Result
from famr.engine.devices import Precision
from famr.engine.distributed import ALONE, Ranks
from famr.engine.plain import PlainEngine, PlainSession
from famr.models import Classifier
from famr.models.layers import trainable


class DistributedSession(PlainSession):
    """One process's part of a session; see `base.Session`.

    Args:
        original: The classifier that is copied, the same in every process.
        device: This process's device.
        precision: Of the forward passes.
        step_size: Images of a step of all processes, where it is known.
        ranks: The processes.
    """

    def __init__(
        self, original: Classifier, device: torch.device, precision: Precision, step_size: int | None, ranks: Ranks
    ) -> None:
        super().__init__(original, device, precision, step_size)
        self._ranks = ranks
        self._evaluation_size = gradient_batch_size(step_size)
        if ranks.sharded:
            from famr.engine.fsdp import shard

            shard(self.model.module, device, ranks)
            self._trainable = trainable(self.model.module)

    def batches(self, images: Images, size: int) -> Batches:
        """See `Session.batches`."""
        return image_batches(images, self.model.require_preprocessing(), size, self.device, self._ranks)

    def loader_batches(self, loader: Iterable[LabelledImages]) -> Batches:
        """See `Session.loader_batches`."""
        return loader_batches(loader, self.device, self._ranks)

    def logits(self, batch: Batch) -> Tensor:
        """See `Session.logits`."""
        return self.gather(super().logits(batch), len(batch.labels))

    def gather(self, values: Tensor, count: int) -> Tensor:
        """See `Session.gather`."""
        return self._ranks.gather(values, count)

    def in_parts(self, compute: Callable[[Batch], Result], batch: Batch) -> list[Result]:
        """The whole batch: one process alone cannot divide it, as all gather its rows."""
        return [compute(batch)]

    def gradient(self, loss: BatchLoss, batch: Batch) -> tuple[Tensor, list[Tensor]]:
        """See `Session.gradient`."""
        value = loss(batch)
        return value.detach(), self._ranks.gradient(value, self.parameters)

    def reset(self) -> None:
        """See `Session.reset`."""
        if not self._ranks.sharded:
            return super().reset()
        from famr.engine.fsdp import load_shards

        return load_shards(self.model.module, self.original.module)

    def export(self) -> Classifier:
        """See `Session.export`.

        Raises:
            DataError: The processes ended with different weights.
        """
        if self._ranks.sharded:
            from famr.engine.fsdp import unshard

            self.model = unshard(self.model, self.original)
        exported = super().export()
        facts = {"the unlearned weights": exported.digest()}
        self._ranks.agree(facts, fix="Use the same hardware and libraries for all.")
        return exported


@dataclass(frozen=True)
class DistributedEngine(PlainEngine):
    """Opens sessions in all processes of a run.

    Attributes:
        device: This process's device.
        ranks: The processes.
    """

    ranks: Ranks = ALONE

    @property
    def processes(self) -> int:
        """See `Engine.processes`."""
        return self.ranks.size

    @property
    def sharded(self) -> bool:
        """See `Engine.sharded`."""
        return self.ranks.sharded

    def _open(self, original: Classifier, precision: Precision, step_size: int | None) -> PlainSession:
        return DistributedSession(original, self.device, precision, step_size, self.ranks)

    def fail_together(self) -> AbstractContextManager[None]:
        """See `Engine.fail_together`."""
        return self.ranks.fail_together()

    def agree(self, facts: Callable[[], Mapping[str, Any]]) -> None:
        """See `Engine.agree`.

        Args:
            facts: What must be the same, by the name that an error gives it.
        """
        if self.ranks.size > 1:
            self.ranks.agree(facts())
