"""The reference engine: forward, backward, nothing else. Read this one; the others are held to it."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from famr.data import Images
from famr.data.loaders import Batch, Batches, LabelledImages, evaluation_batch_size, image_batches, loader_batches
from famr.engine.base import BatchLoss
from famr.engine.devices import Precision, autocast
from famr.engine.inference import require_known_classes
from famr.engine.oom import MicroBatches, map_in_halves
from famr.losses.objective import at_least_float32
from famr.metrics.predictions import Predictions
from famr.models import Classifier
from famr.models.classifier import logits_of
from famr.models.layers import trainable


class PlainSession:
    """A copy of a classifier on one device; see `base.Session` for what each method promises.

    Args:
        original: The classifier that is copied.
        device: Where the copy computes.
        precision: Of the forward passes.
        step_size: Images of a step, where it is known.
    """

    processes = 1

    def __init__(self, original: Classifier, device: torch.device, precision: Precision, step_size: int | None) -> None:
        self.original, self.device, self.precision = original, device, precision
        self.model = original.copy()
        self.model.module.to(device).eval()
        self.setup_seconds = 0.0
        self._evaluation_size = evaluation_batch_size(device, step_size)
        self._micro_batches = MicroBatches()
        self._parameters = trainable(self.model.module)
        self._trainable_before = {name: p.requires_grad for name, p in self.model.module.named_parameters()}

    @property
    def parameters(self) -> list[nn.Parameter]:  # noqa: D102
        return self._parameters

    def train_only(self, names: Container[str], *, cache_prefix: bool = True) -> None:  # noqa: ARG002, D102
        for name, parameter in self.model.module.named_parameters():
            parameter.requires_grad_(name in names)
        self._parameters = trainable(self.model.module)

    def batches(self, images: Images, size: int) -> Batches:  # noqa: D102
        return self.image_batches(images, size)

    def evaluation_batches(self, images: Images) -> Batches:  # noqa: D102
        return self.batches(images, self._evaluation_size)

    def image_batches(self, images: Images, size: int) -> Batches:  # noqa: D102
        return image_batches(images, self.model.require_preprocessing(), size, self.device)

    def loader_batches(self, loader: Iterable[LabelledImages]) -> Batches:  # noqa: D102
        return loader_batches(loader, self.device)

    def logits(self, batch: Batch) -> Tensor:  # noqa: D102
        return at_least_float32(logits_of(self.forward(batch.images)))

    def forward(self, images: Tensor) -> Any:
        """What the network returns, in the precision of the run.

        Args:
            images: As the network takes them.
        """
        with autocast(self.device, self.precision):
            return self.model.module(images)

    def gather(self, values: Tensor, count: int) -> Tensor:  # noqa: ARG002, D102
        return values

    @torch.no_grad()
    def predict(self, batches: Batches) -> Predictions:  # noqa: D102
        logits, labels = [], []
        for batch in batches(None):
            logits += map_in_halves(self.logits, batch) if self.processes == 1 else [self.logits(batch)]
            labels.append(batch.labels)
        return require_known_classes(self.model, Predictions(torch.cat(logits).cpu(), torch.cat(labels).cpu()))

    def gradient(self, loss: BatchLoss, batch: Batch) -> tuple[Tensor, list[Tensor]]:  # noqa: D102
        return self._micro_batches.gradient(loss, batch, self.parameters)

    def run(self, step: Callable[[Batch], Tensor], batch: Batch) -> Tensor:  # noqa: D102
        return step(batch)

    def reset(self) -> None:  # noqa: D102
        self.model.module.load_state_dict(self.original.module.state_dict())

    def export(self) -> Classifier:  # noqa: D102
        home = next(self.original.module.parameters()).device
        for name, parameter in self.model.module.named_parameters():
            parameter.requires_grad_(self._trainable_before[name])
        self.model.module.to(home).zero_grad()
        return self.model


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
        """Open a session; see `base.Engine`.

        Args:
            original: The classifier; it is copied and stays as it is.
            precision: Of the forward passes.
            step_size: Images of a step, where it is known.
        """
        yield PlainSession(original, self.device, precision, step_size)

    def together(self) -> AbstractContextManager[None]:  # noqa: D102
        return nullcontext()

    def agree(self, facts: Callable[[], Mapping[str, Any]]) -> None:
        """One process always agrees."""
