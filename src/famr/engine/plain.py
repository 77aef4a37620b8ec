"""The reference engine: forward, backward, nothing else. Read this one; every other engine is compared with it."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from famr.data import Images
from famr.data.loaders import Batch, Batches, LabelledImages, evaluation_batch_size, image_batches, loader_batches
from famr.engine.base import BatchLoss, Result
from famr.engine.devices import Precision, autocast
from famr.engine.inference import require_known_classes
from famr.engine.oom import MicroBatches, map_in_halves
from famr.losses.objective import at_least_float32
from famr.metrics.predictions import Predictions
from famr.models import Classifier
from famr.models.classifier import logits_of
from famr.models.layers import trainable


class PlainSession:
    """A copy of a classifier on one device; see `base.Session`.

    Args:
        original: The classifier that is copied.
        device: Where the copy computes.
        precision: Of the forward passes.
        step_size: Images of a step, where it is known.
    """

    def __init__(self, original: Classifier, device: torch.device, precision: Precision, step_size: int | None) -> None:
        self.original, self.device, self.precision = original, device, precision
        self.model = original.copy()
        self.model.module.to(device).eval()
        self._evaluation_size = evaluation_batch_size(device, step_size)
        self._micro_batches = MicroBatches()
        self._trainable = trainable(self.model.module)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """See `Session.parameters`."""
        return self._trainable

    @property
    def setup_seconds(self) -> float:
        """None are spent here."""
        return 0.0

    def train_only(self, names: Container[str], *, cache_prefix: bool = True) -> None:  # noqa: ARG002
        """See `Session.train_only`."""
        for name, parameter in self.model.module.named_parameters():
            parameter.requires_grad_(name in names)
        self._trainable = trainable(self.model.module)

    def batches(self, images: Images, size: int) -> Batches:
        """See `Session.batches`."""
        return self.image_batches(images, size)

    def evaluation_batches(self, images: Images) -> Batches:
        """See `Session.evaluation_batches`."""
        return self.batches(images, self._evaluation_size)

    def image_batches(self, images: Images, size: int) -> Batches:
        """See `Session.image_batches`."""
        return image_batches(images, self.model.require_preprocessing(), size, self.device)

    def loader_batches(self, loader: Iterable[LabelledImages]) -> Batches:
        """See `Session.loader_batches`."""
        return loader_batches(loader, self.device)

    def logits(self, batch: Batch) -> Tensor:
        """See `Session.logits`."""
        return at_least_float32(logits_of(self.forward(batch.images)))

    def forward(self, images: Tensor) -> Any:
        """What the network returns, in the precision of the run.

        Args:
            images: As the network takes them.
        """
        with autocast(self.device, self.precision):
            return self.model.module(images)

    def gather(self, values: Tensor, count: int) -> Tensor:  # noqa: ARG002
        """See `Session.gather`."""
        return values

    def in_parts(self, compute: Callable[[Batch], Result], batch: Batch) -> list[Result]:
        """See `Session.in_parts`."""
        return map_in_halves(compute, batch)

    @torch.no_grad()
    def predict(self, batches: Batches) -> Predictions:
        """See `Session.predict`."""
        logits, labels = [], []
        for batch in batches(None):
            logits += self.in_parts(self.logits, batch)
            labels.append(batch.labels)
        return require_known_classes(self.model, Predictions(torch.cat(logits).cpu(), torch.cat(labels).cpu()))

    def gradient(self, loss: BatchLoss, batch: Batch) -> tuple[Tensor, list[Tensor]]:
        """See `Session.gradient`."""
        return self._micro_batches.gradient(loss, batch, self.parameters)

    def step_input(self, reader: object, batch: Batch) -> Batch:  # noqa: ARG002
        """See `Session.step_input`."""
        return batch

    def run(self, step: Callable[[Batch], Tensor], batch: Batch) -> Tensor:
        """See `Session.run`."""
        return step(batch)

    def reset(self) -> None:
        """See `Session.reset`."""
        self.model.module.load_state_dict(self.original.module.state_dict())

    def export(self) -> Classifier:
        """See `Session.export`."""
        flags = {name: parameter.requires_grad for name, parameter in self.original.module.named_parameters()}
        for name, parameter in self.model.module.named_parameters():
            parameter.requires_grad_(flags[name])
        self.model.module.to(next(self.original.module.parameters()).device).zero_grad()
        return self.model

    def close(self) -> None:
        """Free what was kept to make passes and steps faster."""


@dataclass(frozen=True)
class PlainEngine:
    """Opens plain sessions.

    Attributes:
        device: Where they compute.
    """

    device: torch.device

    @property
    def processes(self) -> int:
        """One."""
        return 1

    @property
    def sharded(self) -> bool:
        """One process holds all weights."""
        return False

    @contextmanager
    def session(
        self, original: Classifier, precision: Precision = "fp32", step_size: int | None = None
    ) -> Iterator[PlainSession]:
        """Open a session, outside of any autocast of the caller; see `Engine.session`.

        Args:
            original: The classifier; it is copied and not changed.
            precision: Of the forward passes.
            step_size: Images of a step, where it is known.
        """
        with torch.autocast(self.device.type, enabled=False):
            session = self._open(original, precision, step_size)
            try:
                yield session
            finally:
                session.close()

    def _open(self, original: Classifier, precision: Precision, step_size: int | None) -> PlainSession:
        return PlainSession(original, self.device, precision, step_size)

    def fail_together(self) -> AbstractContextManager[None]:
        """See `Engine.fail_together`."""
        return nullcontext()

    def agree(self, facts: Callable[[], Mapping[str, Any]]) -> None:
        """One process always agrees.

        Args:
            facts: Not read.
        """
