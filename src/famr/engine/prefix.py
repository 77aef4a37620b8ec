"""The frozen-prefix cache: activations before the first trainable block are computed once an image.

Where only late layers change, the blocks before them give the same activations in every step. They are computed once
and kept; steps and evaluation passes start from there. To start there the network is called on one blank image, and a
hook puts the kept activations in place of the blank's, in front of the first trainable block. That is done only where
the logits are then the same to the last bit, which is tried on a few images first.
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
from famr.models.layers import blocks, call_order

CPU_CACHE = 1 << 30
"""Bytes of activations that are kept in a CPU's memory."""
GPU_SHARE = 4
"""Activations may take one part in so many of the free memory of a GPU."""
TRIED = 4
"""Images on which a prefix is tried."""


class _Reached(Exception):  # noqa: N818
    """The first trainable block is reached; its input is known."""


@dataclass(frozen=True, eq=False)
class Prefix:
    """The frozen beginning of a network.

    Attributes:
        first_trainable: The block in front of which it ends.
        blank: One image (1, channels, height, width), which stands for all kept ones.
        shape: Shape of one image's activations.
        nbytes: Their size.
    """

    first_trainable: nn.Module
    blank: Tensor
    shape: torch.Size
    nbytes: int

    def fits(self, images: int) -> bool:
        """Whether activations of so many images are little beside the free memory.

        Args:
            images: How many.
        """
        device = self.blank.device
        room = torch.cuda.mem_get_info(device)[0] // GPU_SHARE if device.type == "cuda" else CPU_CACHE
        return self.nbytes * images <= room


@torch.no_grad()
def activations(block: nn.Module, forward: Callable[[], object]) -> Tensor:
    """The input of a block in a forward pass, which ends there.

    Args:
        block: A block of the network.
        forward: Runs the network.
    """
    inputs: list[Tensor] = []

    def stop(_block: nn.Module, given: tuple[Any, ...]) -> None:
        inputs.append(given[0])
        raise _Reached

    handle = block.register_forward_pre_hook(stop)
    try:
        forward()
    except _Reached:
        pass
    finally:
        handle.remove()
    return inputs[0]


@contextmanager
def replaced_input(block: nn.Module, kept: Tensor) -> Iterator[None]:
    """Give a block `kept` in place of its input, for as long as the context lasts.

    Args:
        block: A block of the network.
        kept: Activations.
    """
    handle = block.register_forward_pre_hook(lambda _block, given: (kept, *given[1:]))
    try:
        yield
    finally:
        handle.remove()


def find_prefix(module: nn.Module, logits: Callable[[Tensor], Tensor], images: Tensor) -> Prefix | None:
    """The blocks before the first one with a trainable parameter.

    Args:
        module: The network; `requires_grad` tells which parameters change.
        logits: The network's logits on images, in the precision of the run.
        images: A few images to try it on.

    Returns:
        None where nothing before the first trainable block is frozen, where a trainable parameter lies outside of the
        blocks, or where the network's logits are not the same with replaced activations.
    """
    rank = call_order(module, lambda: logits(images))
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    trained = [rank[name] for name, parameter in module.named_parameters() if parameter.requires_grad]
    ranks = {block: [rank[names[id(p)]] for p in block.parameters()] for block in blocks(module)}
    row = sorted((block for block in ranks if ranks[block]), key=lambda block: min(ranks[block]))
    first = next((block for block in row if any(p.requires_grad for p in block.parameters())), None)
    if first is None or min(trained) < min(ranks[first]):
        return None
    if not any(max(ranks[block]) < min(ranks[first]) for block in row):
        return None
    blank = torch.zeros_like(images[:1])
    try:
        with torch.no_grad():
            expected = logits(images)
            kept = activations(first, lambda: logits(images))
            with replaced_input(first, kept):
                same = torch.equal(logits(blank), expected)
    except Exception:  # of whatever kind: the network is not a row of blocks
        return None
    if not same or len(kept) != len(images) or kept.shape[1:] == images.shape[1:]:
        return None
    return Prefix(first, blank, kept.shape[1:], kept.nbytes // len(images))


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
        self._activations: dict[tuple[int, bytes], Tensor] = {}

    def train_only(self, names: Container[str], *, cache_prefix: bool = True) -> None:  # noqa: D102
        super().train_only(names)
        frozen = any(not parameter.requires_grad for parameter in self.model.module.parameters())
        self._may_have_prefix, self._prefix = cache_prefix and frozen, None
        self._activations.clear()

    def batches(self, images: Images, size: int) -> Batches:  # noqa: D102
        prefix = self._prefix_for(images)
        if prefix is None or not prefix.fits(len(images)):
            return self.image_batches(images, size)

        def one_pass(seed: int | None) -> Iterator[Batch]:
            kept, targets = self._kept(prefix, images), images.targets.to(self.device)
            for positions in torch.split(order(len(images), seed).to(self.device), size):
                yield Batch(kept[positions], targets[positions], positions)

        return one_pass

    def logits(self, batch: Batch) -> Tensor:  # noqa: D102
        if self._prefix is None or batch.images.shape[1:] != self._prefix.shape:
            return super().logits(batch)
        with replaced_input(self._prefix.first_trainable, batch.images):
            return self._logits_of(self._prefix.blank)

    def _logits_of(self, images: Tensor) -> Tensor:
        return super().logits(Batch(images, images, images))

    def _prefix_for(self, images: Images) -> Prefix | None:
        if self._may_have_prefix:
            self._may_have_prefix = False
            sample = images.take(torch.arange(min(TRIED, len(images))))
            batch = next(iter(self.image_batches(sample, TRIED)(None)))
            self._prefix = find_prefix(self.model.module, self._logits_of, batch.images)
        return self._prefix

    def _kept(self, prefix: Prefix, images: Images) -> Tensor:
        """Activations of all images, computed in the first pass over them."""
        key = (id(images.cache), images.rows.numpy().tobytes())

        def inputs_of_block(pixels: Tensor) -> Tensor:
            return activations(prefix.first_trainable, lambda: self._logits_of(pixels))

        if key not in self._activations:
            parts = []
            for batch in self.image_batches(images, self._evaluation_size)(None):
                start = time.perf_counter()
                parts.append(halve_on_oom(inputs_of_block, batch.images))
                if self.device.type == "cuda":
                    torch.cuda.synchronize(self.device)
                self.setup_seconds += time.perf_counter() - start
            self._activations[key] = torch.cat(parts)
        return self._activations[key]


@dataclass(frozen=True)
class PrefixEngine(PlainEngine):
    """Opens sessions with a frozen-prefix cache: the default on a CPU.

    Attributes:
        device: Where they compute.
    """

    @contextmanager
    def session(
        self, original: Classifier, precision: Precision = "fp32", step_size: int | None = None
    ) -> Iterator[PrefixSession]:
        """Open a session; see `base.Engine`.

        Args:
            original: The classifier; it is copied and stays as it is.
            precision: Of the forward passes.
            step_size: Images of a step, where it is known.
        """
        yield PrefixSession(original, self.device, precision, step_size)
