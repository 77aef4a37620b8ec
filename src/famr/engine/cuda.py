"""The CUDA engine: bf16, the frozen-prefix cache, and steps replayed as CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from famr.data.loaders import Batch
from famr.engine.bf16 import Bf16Network
from famr.engine.devices import Precision, ready_attention
from famr.engine.graphs import GraphedStep, Shapes, shapes_of
from famr.engine.plain import PlainSession
from famr.engine.prefix import PrefixEngine, PrefixSession
from famr.models import Classifier


class CudaSession(PrefixSession):
    """A prefix session that records each step once and replays it.

    Args:
        original: The classifier that is copied.
        device: A CUDA device.
        precision: Of the forward passes; bf16 is that of `famr.engine.bf16`.
        step_size: Images of a step, where it is known.
    """

    def __init__(self, original: Classifier, device: torch.device, precision: Precision, step_size: int | None) -> None:
        super().__init__(original, device, precision, step_size)
        self._step: Callable[[Batch], Tensor] | None = None
        self._graphed: dict[tuple[Shapes, ...], GraphedStep] = {}
        self._inputs: dict[tuple[object, Shapes], Batch] = {}
        self._read: dict[object, Shapes] = {}
        self._bf16: Bf16Network | None = None
        self._rounds_activations = precision == "bf16"

    def train_only(self, names: Container[str], *, cache_prefix: bool = True) -> None:
        """See `Session.train_only`. Activations that hooks read stay in float32, under autocast."""
        super().train_only(names, cache_prefix=cache_prefix)
        self._rounds_activations = self.precision == "bf16" and cache_prefix
        self._bf16 = None

    def forward(self, images: Tensor) -> Any:
        """See `PlainSession.forward`.

        Args:
            images: As the network takes them.
        """
        if not self._rounds_activations:
            return super().forward(images)
        if self._bf16 is None:
            self._bf16 = Bf16Network(self.model.module, images[:2])
        return self._bf16(images)

    def step_input(self, reader: object, batch: Batch) -> Batch:
        """See `Session.step_input`. There is one buffer, and one recording, for each shape that a reader has."""
        self._read[reader] = shapes = shapes_of(batch)
        if (reader, shapes) not in self._inputs:
            self._inputs[reader, shapes] = Batch(*(tensor.to(self.device, copy=True) for tensor in batch))
        buffer = self._inputs[reader, shapes]
        for ours, given in zip(buffer, batch, strict=True):
            ours.copy_(given)
        return buffer

    def run(self, step: Callable[[Batch], Tensor], batch: Batch) -> Tensor:
        """See `Session.run`."""
        if self._step is not step:
            self._step = step
            self._graphed.clear()
        shapes = tuple(self._read.values())
        if shapes not in self._graphed:
            self._graphed[shapes] = GraphedStep(lambda *tensors: step(Batch(*tensors)), self.device)
        return self._graphed[shapes](batch)

    def close(self) -> None:
        """Free the recordings, which refer to their session, and what they read."""
        self._step = self._bf16 = None
        self._graphed.clear()
        self._inputs.clear()
        self._read.clear()
        super().close()


@dataclass(frozen=True)
class CudaEngine(PrefixEngine):
    """Opens CUDA sessions: the default on a GPU.

    Attributes:
        device: A CUDA device.
    """

    @contextmanager
    def session(
        self, original: Classifier, precision: Precision = "fp32", step_size: int | None = None
    ) -> Iterator[PlainSession]:
        """Open a session on this device; see `Engine.session`.

        Args:
            original: The classifier; it is copied and not changed.
            precision: Of the forward passes; bf16 is that of `famr.engine.bf16`.
            step_size: Images of a step, where it is known.
        """
        opened = super().session(original, precision, step_size)
        with torch.cuda.device(self.device), ready_attention(self.device), opened as session:
            yield session

    def _open(self, original: Classifier, precision: Precision, step_size: int | None) -> PlainSession:
        return CudaSession(original, self.device, precision, step_size)
