"""The engine interface: how the passes and the steps of a run are computed.

An engine opens a session on a copy of a classifier. A session says which batches a pass has, computes logits and
gradients, and runs steps. `plain.PlainSession` is the reference; every other session must give the same numbers up to
rounding, which `tests/engine/test_engines.py` checks.

    plain.py        the reference, one screen
    prefix.py       + activations of frozen blocks are computed once
    cuda.py         + bf16 (bf16.py), steps replayed as CUDA graphs (graphs.py)
    ddp.py          several processes share every batch; with fsdp.py also the weights
    oom.py          what happens where memory runs out
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from famr.data import Images
from famr.data.loaders import Batch, Batches, LabelledImages
from famr.engine.devices import Precision
from famr.losses.objective import Reduction
from famr.metrics.predictions import Predictions
from famr.models import Classifier

Result = TypeVar("Result")


class BatchLoss(Protocol):
    """A loss of one batch, with a graph."""

    @property
    def reduction(self) -> Reduction:
        """Whether the loss of a batch is the sum or the mean over its images."""
        ...

    def __call__(self, batch: Batch) -> Tensor:
        """The loss, a scalar.

        Args:
            batch: The batch.
        """
        ...


class Session(Protocol):
    """A copy of a classifier on its device, for as long as a run lasts.

    Attributes:
        original: The classifier that was copied.
        model: The copy. It is in evaluation mode: dropout is off and BatchNorm keeps its statistics.
        device: Where the copy is.
        precision: Of the forward passes; weights, gradients and losses are float32.
    """

    original: Classifier
    model: Classifier
    device: torch.device
    precision: Precision

    @property
    def parameters(self) -> list[nn.Parameter]:
        """θ: the parameters that may change."""
        ...

    @property
    def setup_seconds(self) -> float:
        """Time spent so far on what makes steps faster; it counts with the steps."""
        ...

    def train_only(self, names: Container[str], *, cache_prefix: bool = True) -> None:
        """Let the named parameters change and freeze the rest, until the session ends.

        Args:
            names: Parameter names of the module.
            cache_prefix: Whether activations before the first of them may be cached; False where hooks read early
                layers in every pass.
        """
        ...

    def batches(self, images: Images, size: int) -> Batches:
        """Passes over stored images for steps, as `logits` takes them.

        Args:
            images: The images.
            size: Images of a batch.
        """
        ...

    def evaluation_batches(self, images: Images) -> Batches:
        """The same for passes without gradients, in batches of a size that suits them.

        Args:
            images: The images.
        """
        ...

    def image_batches(self, images: Images, size: int) -> Batches:
        """Passes over pixels, whole in every process, for code that calls the module itself.

        Args:
            images: The images.
            size: Images of a batch.
        """
        ...

    def loader_batches(self, loader: Iterable[LabelledImages]) -> Batches:
        """Passes over the batches of a user's loader, as `logits` takes them.

        Args:
            loader: Yields (images, labels); it is read once.
        """
        ...

    def logits(self, batch: Batch) -> Tensor:
        """Logits (images, classes) of a whole batch in at least float32, with a graph where gradients are on.

        Args:
            batch: Of this session's passes.
        """
        ...

    def gather(self, values: Tensor, count: int) -> Tensor:
        """Rows of a whole batch from this process's rows, with their graph.

        Args:
            values: One row for each image of this process's share.
            count: Images of the whole batch.
        """
        ...

    def in_parts(self, compute: Callable[[Batch], Result], batch: Batch) -> list[Result]:
        """`compute` of a batch, or of parts of it where memory does not hold the whole.

        Args:
            compute: A function without a graph that gives one row an image.
            batch: The batch.

        Returns:
            One result, or those of the parts in order.
        """
        ...

    def predict(self, batches: Batches) -> Predictions:
        """Logits and labels of every image, without a graph, on the CPU.

        Args:
            batches: One pass over them is made.
        """
        ...

    def gradient(self, loss: BatchLoss, batch: Batch) -> tuple[Tensor, list[Tensor]]:
        """The loss of a batch and its gradient in `parameters`; zeros where the loss does not depend on one.

        Args:
            loss: The loss.
            batch: The batch.
        """
        ...

    def step_input(self, reader: object, batch: Batch) -> Batch:
        """A further batch that the next step reads, in memory where a recorded step finds it.

        Args:
            reader: Who reads it; each reader has memory of its own.
            batch: The batch.
        """
        ...

    def run(self, step: Callable[[Batch], Tensor], batch: Batch) -> Tensor:
        """Run one step.

        A session may record a step and replay it. What changes from one step to the next must therefore be in `batch`,
        in a `step_input`, or in tensors that are updated in place.

        Args:
            step: Works in place and returns its loss; the same object for all steps of a run.
            batch: Its argument.

        Returns:
            What `step` returns.
        """
        ...

    def reset(self) -> None:
        """Give the copy the original's weights and buffers."""
        ...

    def export(self) -> Classifier:
        """The edited classifier in evaluation mode, with whole weights, on the original's device; ends the session."""
        ...


class Engine(Protocol):
    """Opens sessions."""

    @property
    def device(self) -> torch.device:
        """Where the session's copy will be."""
        ...

    @property
    def processes(self) -> int:
        """Number of processes that share the work."""
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
            original: The classifier; it is copied and not changed.
            precision: Of the forward passes.
            step_size: Images of a step, where it is known: evaluation passes then take no more memory than a step.
        """
        ...

    def fail_together(self) -> AbstractContextManager[None]:
        """A block that fails in every process where it fails in one."""
        ...

    def agree(self, facts: Callable[[], Mapping[str, Any]]) -> None:
        """Refuse a run whose processes do not see the same.

        Args:
            facts: What must be the same, by the name that an error gives it; called only with several processes.

        Raises:
            DataError: Some process sees something else.
        """
        ...
