"""The frozen-prefix cache: activations before the first trainable block are computed once an image.

Where only late layers change, the blocks before them give the same activations in every step. They are computed once
and cached; steps and evaluation passes start from there. To start there the network is called on one blank image, and
a hook replaces the input of the first trainable block by the cached activations. That is done only where the logits
are then the same to the last bit, which is checked on a few images first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from famr.data import Images
from famr.data.loaders import Batch, Batches, order
from famr.engine.devices import Precision
from famr.engine.oom import halve_on_oom
from famr.engine.plain import PlainEngine, PlainSession
from famr.models import Classifier
from famr.models.layers import blocks

CPU_CACHE_BYTES = 1 << 30
"""Bytes of activations that are cached in a CPU's memory."""
GPU_SHARE = 4
"""Activations of a set may take one part in so many of the free memory of a GPU."""
CHECKED_IMAGES = 4
"""Images on which a prefix is checked."""


class _Reached(Exception):  # noqa: N818
    """The first trainable block is reached; its input is known."""


@dataclass(frozen=True, eq=False)
class Prefix:
    """The frozen beginning of a network.

    Attributes:
        first_trainable: The block in front of which it ends.
        blank: One image (1, channels, height, width), on which the network is called.
        shape: Shape of one image's activations.
        nbytes: Their size.
    """

    first_trainable: nn.Module
    blank: Tensor
    shape: torch.Size
    nbytes: int


def block_input(block: nn.Module, forward: Callable[[], object]) -> Tensor:
    """The input of a block in a forward pass, which ends there.

    Args:
        block: A block of the network.
        forward: Runs the network.
    """
    captured: list[Tensor] = []

    def stop(_block: nn.Module, inputs: tuple[Any, ...]) -> None:
        captured.append(inputs[0])
        raise _Reached

    handle = block.register_forward_pre_hook(stop)
    try:
        forward()
    except _Reached:
        pass
    finally:
        handle.remove()
    return captured[0]


@contextmanager
def replaced_input(block: nn.Module, activations: Tensor) -> Iterator[None]:
    """Replace the input of a block, for as long as the context lasts.

    Args:
        block: A block of the network.
        activations: Its input from now on.
    """
    handle = block.register_forward_pre_hook(lambda _block, inputs: (activations, *inputs[1:]))
    try:
        yield
    finally:
        handle.remove()


def find_prefix(module: nn.Module, logits: Callable[[Tensor], Tensor], images: Tensor) -> Prefix | None:
    """The blocks before the first one with a trainable parameter.

    Args:
        module: The network; `requires_grad` tells which parameters change.
        logits: The network's logits on images, in the precision of the run.
        images: A few images to check it on, at least two: one alone cannot show that rows belong to images.

    Returns:
        None where no frozen block comes before the first trainable one, where a trainable parameter lies before it, or
        where the network's logits on a blank image with replaced activations differ in any bit.
    """
    blank = torch.zeros_like(images[:1])
    try:
        first = _first_trainable(module, lambda: logits(images))
        if first is None:
            return None
        with torch.enable_grad():
            if block_input(first, lambda: logits(images)).requires_grad:
                return None
        with torch.no_grad():
            expected = logits(images)
            activations = block_input(first, lambda: logits(images))
            with replaced_input(first, activations):
                same = torch.equal(logits(blank), expected)
    except Exception:  # of whatever kind: the network is not a row of blocks
        return None
    if not same or len(activations) != len(images) or activations.shape[1:] == images.shape[1:]:
        return None
    return Prefix(first, blank, activations.shape[1:], activations.nbytes // len(images))


@torch.no_grad()
def _first_trainable(module: nn.Module, forward: Callable[[], object]) -> nn.Module | None:
    """The first block with a trainable parameter in the order of calls; None where no other block comes before it."""
    called: dict[nn.Module, None] = {}
    handles = [block.register_forward_pre_hook(lambda part, _: called.setdefault(part)) for block in blocks(module)]
    try:
        forward()
    finally:
        for handle in handles:
            handle.remove()
    row = list(called)
    first = next((block for block in row if any(p.requires_grad for p in block.parameters())), None)
    return None if first is None or first is row[0] else first


@dataclass(eq=False)
class _CachedSet:
    """Activations of a set of images, computed in the first pass over it.

    Attributes:
        source: The images' cache; while it is referenced, no other one can have its id.
        nbytes: Size of the activations.
        activations: None before the first pass.
        seconds: Time that computing them took.
        for_steps: Whether steps use them.
    """

    source: object
    nbytes: int
    activations: Tensor | None = None
    seconds: float = 0.0
    for_steps: bool = False


class PrefixSession(PlainSession):
    """A plain session whose batches hold the activations after a frozen prefix, where there is one.

    Args:
        original: The classifier that is copied.
        device: Where the copy computes.
        precision: Of the forward passes.
        step_size: Images of a step, where it is known.
    """

    def __init__(self, original: Classifier, device: torch.device, precision: Precision, step_size: int | None) -> None:
        super().__init__(original, device, precision, step_size)
        self._prefix: Prefix | None = None
        self._may_have_prefix = False
        self._cached: dict[tuple[int, bytes], _CachedSet] = {}

    @property
    def setup_seconds(self) -> float:
        """Time spent so far on activations that steps use."""
        return sum(cached.seconds for cached in self._cached.values() if cached.for_steps)

    def train_only(self, names: Container[str], *, cache_prefix: bool = True) -> None:
        """See `Session.train_only`."""
        super().train_only(names)
        frozen = any(not parameter.requires_grad for parameter in self.model.module.parameters())
        self._may_have_prefix, self._prefix = cache_prefix and frozen, None
        self._cached.clear()

    def batches(self, images: Images, size: int) -> Batches:
        """See `Session.batches`."""
        return self._batches(images, size, for_steps=True)

    def evaluation_batches(self, images: Images) -> Batches:
        """See `Session.evaluation_batches`."""
        return self._batches(images, self._evaluation_size, for_steps=False)

    def _batches(self, images: Images, size: int, *, for_steps: bool) -> Batches:
        prefix = self._find_prefix(images)
        cached = None if prefix is None else self._reserve(prefix, images)
        if prefix is None or cached is None:
            return self.image_batches(images, size)
        cached.for_steps |= for_steps

        def one_pass(seed: int | None) -> Iterator[Batch]:
            if cached.activations is None:
                self._compute(prefix, images, cached)
            assert cached.activations is not None
            targets = images.targets.to(self.device)
            for positions in torch.split(order(len(images), seed).to(self.device), size):
                yield Batch(cached.activations[positions], targets[positions], positions)

        return one_pass

    def logits(self, batch: Batch) -> Tensor:
        """See `Session.logits`."""
        if self._prefix is None or batch.images.shape[1:] != self._prefix.shape:
            return super().logits(batch)
        with replaced_input(self._prefix.first_trainable, batch.images):
            return self._image_logits(self._prefix.blank)

    def _image_logits(self, images: Tensor) -> Tensor:
        return super().logits(Batch(images, images, images))

    def _find_prefix(self, images: Images) -> Prefix | None:
        """The prefix, looked for on the first images that a pass is made over."""
        if self._may_have_prefix:
            self._may_have_prefix = False
            rows = torch.arange(CHECKED_IMAGES) % len(images)
            batch = next(iter(self.image_batches(images.take(rows), CHECKED_IMAGES)(None)))
            self._prefix = find_prefix(self.model.module, self._image_logits, batch.images)
        return self._prefix

    def _reserve(self, prefix: Prefix, images: Images) -> _CachedSet | None:
        """The cache of a set, empty at first; None where memory does not hold it beside those that were reserved."""
        key = (id(images.cache), images.rows.numpy().tobytes())
        if key not in self._cached:
            on_gpu = self.device.type == "cuda"
            room = torch.cuda.mem_get_info(self.device)[0] // GPU_SHARE if on_gpu else CPU_CACHE_BYTES
            reserved = [cached for cached in self._cached.values() if cached.activations is None or not on_gpu]
            nbytes = prefix.nbytes * len(images)
            if nbytes + sum(cached.nbytes for cached in reserved) > room:
                return None
            self._cached[key] = _CachedSet(images.cache, nbytes)
        return self._cached[key]

    @torch.no_grad()
    def _compute(self, prefix: Prefix, images: Images, cached: _CachedSet) -> None:
        """Fill the cache of a set. Reading the images is not timed: every engine has to."""

        def activations(pixels: Tensor) -> Tensor:
            return block_input(prefix.first_trainable, lambda: self._image_logits(pixels))

        values: Tensor | None = None
        for batch in self.image_batches(images, self._evaluation_size)(None):
            start = time.perf_counter()
            rows = halve_on_oom(activations, batch.images)
            if values is None:
                values = rows.new_empty(len(images), *rows.shape[1:])
            values[batch.positions] = rows
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            cached.seconds += time.perf_counter() - start
        cached.activations = values

    def close(self) -> None:
        """Free the cached activations."""
        self._cached.clear()


@dataclass(frozen=True)
class PrefixEngine(PlainEngine):
    """Opens sessions with a frozen-prefix cache: the default on a CPU.

    Attributes:
        device: Where they compute.
    """

    def _open(self, original: Classifier, precision: Precision, step_size: int | None) -> PlainSession:
        return PrefixSession(original, self.device, precision, step_size)
