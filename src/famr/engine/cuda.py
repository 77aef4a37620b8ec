"""The CUDA engine: bf16, the frozen-prefix cache, and steps replayed as CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from famr.data.loaders import Batch
from famr.engine.bf16 import Bf16Network
from famr.engine.devices import Precision
from famr.engine.graphs import GraphedStep
from famr.engine.prefix import PrefixEngine, PrefixSession
from famr.models import Classifier

ATTENTION = [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]
"""Deterministic kernels that are ready at once. cuDNN's take a tenth of a second or more to plan for each batch size,
which a run of some dozen steps does not win back."""


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
        self._graphed: GraphedStep | None = None
        self._bf16: Bf16Network | None = None
        self._rounds_activations = precision == "bf16"

    def train_only(self, names: Container[str], *, cache_prefix: bool = True) -> None:  # noqa: D102
        super().train_only(names, cache_prefix=cache_prefix)
        self._rounds_activations = self.precision == "bf16" and cache_prefix
        self._bf16 = None

    def forward(self, images: Tensor) -> Any:  # noqa: D102
        if not self._rounds_activations:
            return super().forward(images)
        if self._bf16 is None:
            self._bf16 = Bf16Network(self.model.module, images[:2])
        return self._bf16(images)

    def run(self, step: Callable[[Batch], Tensor], batch: Batch) -> Tensor:  # noqa: D102
        if self._graphed is None or self._step is not step:
            self._step = step
            self._graphed = GraphedStep(lambda *tensors: step(Batch(*tensors)), self.device)
        return self._graphed(batch)

    def export(self) -> Classifier:  # noqa: D102
        self._step = self._graphed = self._bf16 = None
        return super().export()


@dataclass(frozen=True)
class CudaEngine(PrefixEngine):
    """Opens CUDA sessions: the default on a GPU.

    Attributes:
        device: A CUDA device.
    """

    @contextmanager
    def session(
        self, original: Classifier, precision: Precision = "bf16", step_size: int | None = None
    ) -> Iterator[CudaSession]:
        """Open a session; see `base.Engine`.

        Args:
            original: The classifier; it is copied and stays as it is.
            precision: Of the forward passes.
            step_size: Images of a step, where it is known.
        """
        with torch.cuda.device(self.device), sdpa_kernel(ATTENTION):
            yield CudaSession(original, self.device, precision, step_size)
