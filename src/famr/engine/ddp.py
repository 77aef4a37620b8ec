"""The distributed engine: several processes share every batch, and with FSDP2 also the weights.

Each process computes the logits of its share of a batch and gathers those of the others, so that all of them know the
loss over the whole batch, the same metrics, and take the same decisions. The gradients are then summed.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from famr.data import Images
from famr.data.loaders import Batch, Batches, LabelledImages, gradient_batch_size, image_batches, loader_batches
from famr.engine.base import BatchLoss
from famr.engine.devices import Precision
from famr.engine.distributed import ALONE, Ranks
from famr.engine.plain import PlainEngine, PlainSession
from famr.models import Classifier
from famr.models.layers import trainable


class DistributedSession(PlainSession):
    """One process's part of a session; see `base.Session` for what each method promises.

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
        self._ranks, self.processes = ranks, ranks.size
        self._evaluation_size = gradient_batch_size(step_size)
        if ranks.sharded:
            from famr.engine.fsdp import spread

            spread(self.model.module, device, ranks)
            self.model.module.eval()
            self._parameters = trainable(self.model.module)

    def train_only(self, names: Container[str], *, cache_prefix: bool = True) -> None:  # noqa: ARG002, D102
        super().train_only(names)

    def batches(self, images: Images, size: int) -> Batches:  # noqa: D102
        return image_batches(images, self.model.require_preprocessing(), size, self.device, self._ranks)

    def loader_batches(self, loader: Iterable[LabelledImages]) -> Batches:  # noqa: D102
        return loader_batches(loader, self.device, self._ranks)

    def logits(self, batch: Batch) -> Tensor:  # noqa: D102
        return self._ranks.gather(super().logits(batch), len(batch.labels))

    def gather(self, values: Tensor, count: int) -> Tensor:  # noqa: D102
        return self._ranks.gather(values, count)

    def gradient(self, loss: BatchLoss, batch: Batch) -> tuple[Tensor, list[Tensor]]:  # noqa: D102
        value = loss(batch)
        return value.detach(), self._ranks.gradient(value, self.parameters)

    def reset(self) -> None:  # noqa: D102
        if not self._ranks.sharded:
            return super().reset()
        from famr.engine.fsdp import restore

        return restore(self.model.module, self.original.module)

    def export(self) -> Classifier:  # noqa: D102
        if self._ranks.sharded:
            from famr.engine.fsdp import made_whole

            self.model = made_whole(self.model, self.original)
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
    def processes(self) -> int:  # noqa: D102
        return self.ranks.size

    @property
    def sharded(self) -> bool:  # noqa: D102
        return self.ranks.sharded

    @contextmanager
    def session(
        self, original: Classifier, precision: Precision = "fp32", step_size: int | None = None
    ) -> Iterator[DistributedSession]:
        """Open a session; see `base.Engine`.

        Args:
            original: The classifier; it is copied and stays as it is.
            precision: Of the forward passes.
            step_size: Images of a step, where it is known.
        """
        yield DistributedSession(original, self.device, precision, step_size, self.ranks)

    def together(self) -> AbstractContextManager[None]:  # noqa: D102
        return self.ranks.together()

    def agree(self, facts: Callable[[], Mapping[str, Any]]) -> None:  # noqa: D102
        self.ranks.agree(facts())
