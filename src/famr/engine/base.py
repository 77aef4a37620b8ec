"""The engine interface: how the passes and the steps of a run are computed.

An engine opens a session on a copy of a classifier. A session answers four questions: which batches, which logits,
which gradient, and how to run a step. `plain.PlainSession` is the reference; every other session must give the same
numbers up to rounding, which `tests/engine/test_engines.py` checks.

    plain.py        the reference, one screen
    prefix.py       + activations of frozen blocks are computed once
    cuda.py         + bf16 by autocast, steps replayed as CUDA graphs
    ddp.py          several processes share every batch; with fsdp.py also the weights
    oom.py          what happens where memory runs out
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from famr.data import Images
from famr.data.loaders import Batch, Batches, LabelledImages
from famr.engine.devices import Precision
from famr.losses.objective import Reduction
from famr.metrics.predictions import Predictions
from famr.models import Classifier


class BatchLoss(Protocol):
    """A loss of one batch, with a graph."""

    @property
    def reduction(self) -> Reduction:
        """Whether the loss of a batch is the sum or the mean over its images."""
        ...

    def __call__(self, batch: Batch) -> Tensor:
        """The loss."""
        ...


class Session(Protocol):
    """A copy of a classifier on its device, for as long as a run lasts."""

    original: Classifier
    model: Classifier
    """The copy. It is in evaluation mode: dropout is off and BatchNorm keeps its statistics."""
    device: torch.device
    precision: Precision
    processes: int
    setup_seconds: float
    """Time spent on what only makes steps faster; it counts with the steps."""

    @property
    def parameters(self) -> list[nn.Parameter]:
        """θ: the parameters that may change."""
        ...

    def train_only(self, names: Container[str], *, cache_prefix: bool = True) -> None:
        """Let the named parameters change and freeze the others, until the session ends.

        Args:
            names: Parameter names of the module.
            cache_prefix: Whether activations before the first of them may be kept; not where early layers are read.
        """
        ...

    def batches(self, images: Images, size: int) -> Batches:
        """Passes over stored images in batches of `size`, as `logits` takes them."""
        ...

    def evaluation_batches(self, images: Images) -> Batches:
        """The same in batches of a size that suits passes without gradients."""
        ...

    def image_batches(self, images: Images, size: int) -> Batches:
        """Passes over the images themselves, whole in every process, for code that calls the module."""
        ...

    def loader_batches(self, loader: Iterable[LabelledImages]) -> Batches:
        """Passes over somebody else's (images, labels)."""
        ...

    def logits(self, batch: Batch) -> Tensor:
        """Logits (images, classes) of a whole batch in at least float32, with a graph where gradients are on."""
        ...

    def gather(self, values: Tensor, count: int) -> Tensor:
        """Rows of the whole batch of `count` images from this process's rows, with their graph."""
        ...

    def predict(self, batches: Batches) -> Predictions:
        """Logits and labels of every image, without a graph, on the CPU."""
        ...

    def gradient(self, loss: BatchLoss, batch: Batch) -> tuple[Tensor, list[Tensor]]:
        """The loss of a batch and its gradient in `parameters`; zeros where a parameter has none."""
        ...

    def run(self, step: Callable[[Batch], Tensor], batch: Batch) -> Tensor:
        """Run one step. A session may record a step and replay it, so that everything that changes from one step to
        the next must be in `batch` or in tensors that are updated in place."""
        ...

    def reset(self) -> None:
        """Give the copy the original's weights."""
        ...

    def export(self) -> Classifier:
        """The edited classifier with whole weights on the original's device."""
        ...


class Engine(Protocol):
    """Opens sessions."""

    @property
    def device(self) -> torch.device:
        """Where the session's copy will be."""
        ...

    @property
    def processes(self) -> int:
        """How many share the work."""
        ...

    @property
    def sharded(self) -> bool:
        """Whether weights are divided among processes, so that anchors which need whole layers cannot be used."""
        ...

    def session(
        self, original: Classifier, precision: Precision, step_size: int | None = None
    ) -> AbstractContextManager[Session]:
        """Open a session.

        Args:
            original: The classifier; it is copied and stays as it is.
            precision: Of the forward passes; weights, gradients and losses are float32.
            step_size: Images of a step, where it is known: evaluation passes then take no more memory than a step.
        """
        ...

    def together(self) -> AbstractContextManager[None]:
        """A block that fails in every process where it fails in one."""
        ...

    def agree(self, facts: Callable[[], Mapping[str, Any]]) -> None:
        """Refuse a run whose processes do not see the same.

        Args:
            facts: What must be the same, by the name under which an error calls it; read only with several processes.
        """
        ...
