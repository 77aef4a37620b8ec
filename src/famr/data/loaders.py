"""From stored images to batches on a device: decoded ahead in threads, resized where the model is."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from famr.data import Images
from famr.data.images import DevicePixels, PreparedImages
from famr.data.transforms import Preprocessing
from famr.errors import RequestError


class Batch(NamedTuple):
    """Some images of a set, with their indices in it.

    Attributes:
        images: (batch, channels, height, width), as the model takes them; with several processes only this one's share.
        labels: Class indices of the whole batch, (batch,).
        positions: Indices of the whole batch in the set, (batch,); on the GPU where the set is kept there, else on the
            CPU.
    """

    images: Tensor
    labels: Tensor
    positions: Tensor


LabelledImages: TypeAlias = tuple[Tensor, Tensor]
"""A batch of a user's loader: images as the model takes them, and class indices."""

Batches: TypeAlias = Callable[[int | None], Iterable[Batch]]
"""One pass over a set: in the stored order for None, else in the random order of that seed."""

EVALUATION_BATCH = 256
GPU_EVALUATION_BATCH = 1024
"""Images of an evaluation batch on a GPU; smaller batches would leave it waiting for Python."""
EVALUATION_RATIO = 4
"""Largest evaluation batch on a GPU during a run, in images of its steps: without gradients the activations of one
layer at a time are kept, with them those of all layers. On a CPU, which does not return all memory that was used, the
ratio is 1."""
DECODING_THREADS = 8
SMALL_IMAGE_THREADS = 3
"""Threads that decode small images, which is mostly Python's own work: more threads are slower."""
PREPARED_BYTES = 256 << 20
"""Bytes of prepared images that a source keeps on a CPU."""
GPU_PIXEL_SHARE = 4
"""A source is kept on a GPU where it takes at most this part (one in …) of the free memory."""
GPU_PREPARED_SHARE = 16
"""The same for prepared images, which take more memory and save less time."""


class BatchShare(Protocol):
    """The share of each batch that one of several processes takes; `engine.distributed.Ranks` is one."""

    @property
    def size(self) -> int:
        """Number of processes."""
        ...

    def share(self, positions: Tensor, /) -> Tensor:
        """This process's share of a batch's indices.

        Args:
            positions: Indices of the whole batch.
        """
        ...


@dataclass(frozen=True)
class WholeBatch:
    """The share of a single process: all of each batch.

    Attributes:
        size: Number of processes.
    """

    size: int = 1

    def share(self, positions: Tensor, /) -> Tensor:
        """See `BatchShare.share`."""
        return positions


WHOLE_BATCH = WholeBatch()


def order(count: int, seed: int | None) -> Tensor:
    """Indices 0, 1, …, count − 1 in the order of a pass.

    Args:
        count: Images of the set.
        seed: Draws a permutation; None for the stored order.
    """
    if seed is None:
        return torch.arange(count)
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


def epoch_seed(seed: int, epoch: int) -> int:
    """Return a seed for the order of one epoch.

    Args:
        seed: The seed of the whole run.
        epoch: The number of the epoch. Below 1,000,003, no two pairs (seed, epoch) share a result.

    Returns:
        A seed for `order`.

    >>> epoch_seed(0, 3), epoch_seed(2, 3)
    (3, 2000009)
    """
    return seed * 1_000_003 + epoch


def image_batches(
    images: Images,
    preprocessing: Preprocessing,
    batch_size: int,
    device: torch.device,
    ranks: BatchShare = WHOLE_BATCH,
) -> Batches:
    """Passes over stored images, prepared for a model.

    Small images are copied to a GPU once. From the second pass on, a set that is small enough is kept prepared: on a
    CPU resizing is a good part of a step, and a small network on a GPU would wait for it.

    Args:
        images: The set.
        preprocessing: Of the model.
        batch_size: Images of a batch; the last one may have fewer.
        device: Where the batches are made.
        ranks: This process's share of each batch.
    """
    return _ImagePasses(images, preprocessing, batch_size, device, ranks)


@dataclass(eq=False)
class _ImagePasses:
    images: Images
    preprocessing: Preprocessing
    batch_size: int
    device: torch.device
    ranks: BatchShare
    passes: int = 0
    prepared: Tensor | None = None

    def __call__(self, seed: int | None) -> Iterator[Batch]:
        if self.prepared is None and self.ranks.size == 1:
            self.passes += 1
            self.prepared = self._cached_or_prepared()
        if self.prepared is None:
            yield from self._prepare(seed)
            return
        for positions, labels in self._on_device(seed):
            yield Batch(self.prepared[positions], labels, positions)

    def _prepare(self, seed: int | None) -> Iterator[Batch]:
        """One pass that resizes and normalises each image."""
        preprocessing = self.preprocessing
        if self._stored is not None:
            for positions, labels in self._on_device(seed):
                pixels = preprocessing.fit(self._stored[self.ranks.share(positions)])
                yield Batch(preprocessing.normalise(pixels), labels, positions)
            return
        batches = pixel_batches(self.images, preprocessing, self.batch_size, self.device, seed, self.ranks)
        for pixels, labels, positions in batches:
            yield Batch(preprocessing.normalise(pixels), labels, positions)

    @cached_property
    def _stored(self) -> Tensor | None:
        return gpu_pixels(self.images, self.preprocessing, self.device)

    def _on_device(self, seed: int | None) -> Iterator[tuple[Tensor, Tensor]]:
        """Indices and labels of each batch; copied to the device once a pass, as a copy in each step would wait."""
        targets, indices = self.images.targets.to(self.device), order(len(self.images), seed).to(self.device)
        for positions in torch.split(indices, self.batch_size):
            yield positions, targets[positions]

    def _cached_or_prepared(self) -> Tensor | None:
        """All images as the network takes them: cached ones, or from the second pass on new ones if they fit."""
        cache, key = self.images.cache, (self.preprocessing, self.device)
        cached = cache.prepared
        if cached is not None and cached.key == key and torch.equal(cached.rows, self.images.rows):
            return cached.images
        shape = (len(self.images), self.preprocessing.channels, *self.preprocessing.crop)
        on_gpu = self.device.type == "cuda"
        room = torch.cuda.mem_get_info(self.device)[0] // GPU_PREPARED_SHARE if on_gpu else PREPARED_BYTES
        if self.passes == 1 or torch.float32.itemsize * math.prod(shape) > room:
            return None
        prepared = torch.empty(shape, device=self.device)
        for batch in self._prepare(None):
            prepared[batch.positions] = batch.images
        cache.prepared = PreparedImages(self.images.rows, key, prepared)
        return prepared


def evaluation_batches(
    images: Images,
    preprocessing: Preprocessing,
    device: torch.device,
    ranks: BatchShare = WHOLE_BATCH,
    step_size: int | None = None,
) -> Batches:
    """Passes over stored images for evaluation, without gradients.

    Args:
        images: The set.
        preprocessing: Of the model.
        device: Where the batches are made.
        ranks: This process's share of each batch.
        step_size: Images of a step of the run that evaluates; None where there is none.
    """
    size = evaluation_batch_size(device, step_size) if ranks.size == 1 else gradient_batch_size(step_size)
    return image_batches(images, preprocessing, size, device, ranks)


def evaluation_batch_size(device: torch.device, step_size: int | None = None) -> int:
    """Images of an evaluation batch: no more than take the memory of a step.

    Args:
        device: Where it is computed.
        step_size: Images of a step; None where there are no steps.

    >>> cpu, cuda = torch.device("cpu"), torch.device("cuda")
    >>> evaluation_batch_size(cpu), evaluation_batch_size(cpu, 10), evaluation_batch_size(cuda, 10)
    (256, 10, 40)
    """
    if device.type != "cuda":
        return gradient_batch_size(step_size)
    return GPU_EVALUATION_BATCH if step_size is None else min(GPU_EVALUATION_BATCH, EVALUATION_RATIO * step_size)


def gradient_batch_size(step_size: int | None) -> int:
    """Images of a batch that may need gradients, or that is not computed on a GPU.

    Args:
        step_size: Images of a step; None where there are no steps.
    """
    return EVALUATION_BATCH if step_size is None else min(EVALUATION_BATCH, step_size)


def pixel_batches(
    images: Images,
    preprocessing: Preprocessing,
    batch_size: int,
    device: torch.device,
    seed: int | None,
    ranks: BatchShare = WHOLE_BATCH,
) -> Iterator[Batch]:
    """One pass as uint8 pixels of the model's size, not normalised.

    Args:
        images: The set.
        preprocessing: Of the model.
        batch_size: Images of a batch; the last one may have fewer.
        device: Where the batches are made.
        seed: Draws the order of the pass; None for the stored order.
        ranks: This process's share of each batch.

    Raises:
        DataError: An image cannot be read.
    """
    targets = images.targets
    workers = min(DECODING_THREADS, os.cpu_count() or 1)
    pending: deque[tuple[Tensor, Future[tuple[Tensor, bool]]]] = deque()

    def next_batch() -> Batch:
        positions, future = pending.popleft()
        pixels, fitted = future.result()
        pixels = pixels.to(device)
        return Batch(pixels if fitted else preprocessing.fit(pixels), targets[positions].to(device), positions)

    with ThreadPoolExecutor(workers) as pool:
        for positions in torch.split(order(len(images), seed), batch_size):
            pending.append((positions, pool.submit(_load, images, preprocessing, ranks.share(positions))))
            if len(pending) > workers:
                yield next_batch()
        while pending:
            yield next_batch()


def training_batches(
    images: Images,
    preprocessing: Preprocessing,
    batch_size: int,
    device: torch.device,
    augment: Callable[[Tensor], Tensor] | None,
) -> Callable[[int | None], Iterator[Batch]]:
    """Passes over pixels of the model's size, not normalised; small images stay on a GPU between passes.

    Args:
        images: The set.
        preprocessing: Of the model.
        batch_size: Images of a batch; the last one may have fewer.
        device: Where the batches are made.
        augment: A random view of each image, of the model's size; None: the images as they are.
    """
    stored, targets = gpu_pixels(images, preprocessing, device), images.targets.to(device)

    def one_pass(seed: int | None) -> Iterator[Batch]:
        if stored is None:
            for batch in pixel_batches(images, preprocessing, batch_size, device, seed):
                yield batch if augment is None else batch._replace(images=augment(batch.images))
            return
        for positions in torch.split(order(len(images), seed).to(device), batch_size):
            yield Batch((augment or preprocessing.fit)(stored[positions]), targets[positions], positions)

    return one_pass


def _load(images: Images, preprocessing: Preprocessing, positions: Tensor) -> tuple[Tensor, bool]:
    """Decoded images as one tensor, and whether they are resized already.

    Small images of one size are left as stored and resized on the device; others are resized one by one, so that there
    is never a batch of full-size photographs.
    """
    height, width = preprocessing.crop
    loaded: list[tuple[Tensor, bool]] = []
    for position in positions.tolist():
        pixels = images.pixels(position, preprocessing.channels)
        large = pixels.shape[-2] > height or pixels.shape[-1] > width
        loaded.append((preprocessing.fit(pixels) if large else pixels, large))
    if not any(fitted for _, fitted in loaded) and len({pixels.shape for pixels, _ in loaded}) == 1:
        return torch.stack([pixels for pixels, _ in loaded]), False
    return torch.stack([pixels if fitted else preprocessing.fit(pixels) for pixels, fitted in loaded]), True


def checked_pairs(loader: Iterable[LabelledImages]) -> Iterator[LabelledImages]:
    """The batches of a user's loader that hold images.

    Args:
        loader: Yields (images, labels) batches.

    Raises:
        RequestError: It yields anything but pairs, or no images.
    """
    empty = True
    for batch in loader:
        if not (isinstance(batch, (tuple, list)) and len(batch) == 2):
            raise RequestError(
                f"The forget loader must yield (images, labels), got {type(batch).__name__}.",
                where="forget=",
                fix="Yield a tensor of images and a tensor of class indices.",
            )
        images, labels = batch
        if len(images):
            empty = False
            yield images, labels
    if empty:
        raise RequestError("The forget set is empty.", where="forget=", fix="Pass at least one (images, labels) batch.")


def loader_batches(loader: Iterable[LabelledImages], device: torch.device, ranks: BatchShare = WHOLE_BATCH) -> Batches:
    """Passes over a user's batches; the loader is read once, and a seed draws the order of the batches.

    Args:
        loader: Yields (images, labels) batches.
        device: Where the batches are kept.
        ranks: This process's share of each batch.

    Raises:
        RequestError: The loader yields anything but pairs, or no images.
    """
    batches: list[Batch] = []
    first = 0
    for images, labels in checked_pairs(loader):
        positions = torch.arange(first, first + len(images))
        share = images[ranks.share(positions) - first] if ranks.size > 1 else images
        batches.append(Batch(share.to(device), labels.to(device), positions))
        first += len(labels)
    return lambda seed: (batches[index] for index in order(len(batches), seed).tolist())


def gpu_pixels(images: Images, preprocessing: Preprocessing, device: torch.device) -> Tensor | None:
    """A whole set as stored on a GPU, where its images are small, of one size, and fit.

    Args:
        images: The set.
        preprocessing: Of the model; images larger than its crop are not kept.
        device: The GPU; on another device nothing is kept.

    Returns:
        uint8, (images, channels, height, width); None where the set is not kept.
    """
    if device.type != "cuda":
        return None
    free, _total = torch.cuda.mem_get_info(device)
    return device_pixels(images, preprocessing, device, free // GPU_PIXEL_SHARE)


def device_pixels(images: Images, preprocessing: Preprocessing, device: torch.device, room: int) -> Tensor | None:
    """A whole set as stored on a device; each image of its source is decoded and copied once for all subsets.

    Args:
        images: The set.
        preprocessing: Of the model; images larger than its crop are not kept.
        device: Where the pixels are kept.
        room: Bytes that the whole source may take.

    Returns:
        uint8, (images, channels, height, width); None where images are large or of several sizes, or the source does
        not fit.
    """
    if not len(images):
        return None
    key = (preprocessing.channels, str(device))
    store = images.cache.on_device.get(key)
    if store is None:
        first, resized = _load(images, preprocessing, torch.tensor([0]))
        if resized or first.nbytes * len(images.all_ids) > room:
            return None
        store = images.cache.on_device[key] = DevicePixels(len(images.all_ids), first[0], device)
    missing = (~store.filled[images.rows]).nonzero()[:, 0]
    chunks = torch.split(missing, EVALUATION_BATCH) if len(missing) else ()
    with ThreadPoolExecutor(min(SMALL_IMAGE_THREADS, os.cpu_count() or 1)) as pool:
        loaded = pool.map(lambda positions: _load(images, preprocessing, positions), chunks)
        for positions, (pixels, resized) in zip(chunks, loaded, strict=True):
            if resized or pixels.shape[1:] != store.pixels.shape[1:]:
                pool.shutdown(cancel_futures=True)
                return None
            rows = images.rows[positions]
            store.pixels[rows.to(device)] = pixels.to(device)
            store.filled[rows] = True
    return store.pixels[images.rows.to(device)]
