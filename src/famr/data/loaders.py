"""From stored images to batches on the device: decoding ahead in threads, resizing where the model is."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from famr.data import Images
from famr.data.images import Shelf
from famr.data.transforms import Preprocessing
from famr.engine.distributed import ALONE, Ranks
from famr.errors import RequestError


class Batch(NamedTuple):
    """Some images of a set, and where in the set they stand."""

    images: Tensor  # (batch, channels, height, width), as the model takes them; of several ranks, this one's share
    labels: Tensor  # (batch,) class indices
    positions: Tensor  # (batch,) places in the set; on the device where the images wait there, else on the CPU


LabelledImages: TypeAlias = tuple[Tensor, Tensor]
"""What somebody else's loader yields: images as the model takes them, and class indices."""

Batches: TypeAlias = Callable[[int | None], Iterable[Batch]]
"""One pass over a set: in a fixed order for None, else in the random order of that seed."""

EVALUATION_BATCH = 256
LOOK = 1024
"""Images at a time on a GPU where nothing but answers are wanted: fewer would keep it waiting for Python."""
LIGHTER = 4
"""Beside a run's steps, at most so many times the images of one: without gradients a network holds what one layer makes
of an image, with them what all have made. On a CPU memory that was used is not all free again: as many as a step's."""
SMALL_WORKERS = 3
"""Threads that decode small images: most of that is Python's own work, and with more of them it goes slower."""
KEPT = 256 << 20
"""Bytes of prepared images that a source keeps on a CPU."""
SHARE = 4
"""A source is kept on a GPU where it takes no more than one part in so many of what is free there."""
LITTLE_SHARE = 16
"""The same for prepared images, which take more room and save less."""


def order(count: int, seed: int | None) -> Tensor:
    """0, 1, …, count−1, or a permutation of them drawn with `seed`."""
    if seed is None:
        return torch.arange(count)
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


def image_batches(
    images: Images, preprocessing: Preprocessing, batch_size: int, device: torch.device, ranks: Ranks = ALONE
) -> Batches:
    """Passes over stored images, prepared for a model; small images are brought to a GPU once.

    A few images stay prepared from the second pass on, for whoever goes over them: on a CPU to resize them is a good
    part of a step, and a small network on a GPU would wait for it.
    """
    held: list[Tensor | None] = []
    kept: list[Tensor] = []
    passes = count(1)

    def prepared_anew(seed: int | None) -> Iterator[Batch]:
        if not held:
            held.append(resident(images, preprocessing, device))
        if held[0] is not None:
            targets = images.targets.to(device)
            places = order(len(images), seed).to(device)  # once a pass: to send them step by step is to wait each time
            for positions in torch.split(places, batch_size):
                mine = held[0][ranks.share(positions)]
                yield Batch(preprocessing.normalise(preprocessing.fit(mine)), targets[positions], positions)
            return
        for pixels, labels, positions in pixel_batches(images, preprocessing, batch_size, device, seed, ranks):
            yield Batch(preprocessing.normalise(pixels), labels, positions)

    def one_pass(seed: int | None) -> Iterator[Batch]:
        if not kept and ranks.size == 1:
            kept.extend(_prepared(images, preprocessing, prepared_anew, device, again=next(passes) > 1))
        if not kept:
            yield from prepared_anew(seed)
            return
        targets, places = images.targets.to(device), order(len(images), seed).to(device)
        for positions in torch.split(places, batch_size):
            yield Batch(kept[0][positions], targets[positions], positions)

    return one_pass


def _prepared(
    images: Images, preprocessing: Preprocessing, anew: Batches, device: torch.device, again: bool
) -> list[Tensor]:
    """All of them as a network takes them, if they are kept, or few enough and gone over again; else nothing."""
    found, shape = images.cache.prepared, (len(images), preprocessing.channels, *preprocessing.crop)
    if found is not None and found[1] == (preprocessing, device) and torch.equal(found[0], images.rows):
        return [found[2]]
    room = torch.cuda.mem_get_info(device)[0] // LITTLE_SHARE if device.type == "cuda" else KEPT
    if not again or 4 * math.prod(shape) > room:
        return []
    ready = torch.empty(shape, device=device)
    for batch in anew(None):
        ready[batch.positions] = batch.images
    images.cache.prepared = (images.rows, (preprocessing, device), ready)
    return [ready]


def evaluation_batches(
    images: Images,
    preprocessing: Preprocessing,
    device: torch.device,
    ranks: Ranks = ALONE,
    a_step: int | None = None,
) -> Batches:
    """Passes over stored images that only ask for answers; `a_step`: images of a step of the run that asks, if any."""
    size = evaluation_batch_size(device, a_step) if ranks.size == 1 else gradient_batch_size(a_step)
    return image_batches(images, preprocessing, size, device, ranks)


def evaluation_batch_size(device: torch.device, a_step: int | None = None) -> int:
    """Images at a time where nothing but answers are wanted: no more than take the memory of a step, if one is known.

    >>> cpu, cuda = torch.device("cpu"), torch.device("cuda")
    >>> evaluation_batch_size(cpu), evaluation_batch_size(cpu, 10), evaluation_batch_size(cuda, 10)
    (256, 10, 40)
    """
    if device.type != "cuda":
        return gradient_batch_size(a_step)
    return LOOK if a_step is None else min(LOOK, LIGHTER * a_step)


def gradient_batch_size(a_step: int | None) -> int:
    """Images at a time where more than answers may be wanted, or there is no GPU."""
    return EVALUATION_BATCH if a_step is None else min(EVALUATION_BATCH, a_step)


def pixel_batches(
    images: Images,
    preprocessing: Preprocessing,
    batch_size: int,
    device: torch.device,
    seed: int | None,
    ranks: Ranks = ALONE,
) -> Iterator[Batch]:
    """One pass as uint8 pixels of the model's size, on the device."""
    targets = images.targets
    workers = min(8, os.cpu_count() or 1)
    pending: deque[tuple[Tensor, Future[tuple[Tensor, bool]]]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        for positions in torch.split(order(len(images), seed), batch_size):
            pending.append((positions, pool.submit(_load, images, preprocessing, ranks.share(positions))))
            if len(pending) > workers:
                yield _finish(pending.popleft(), preprocessing, targets, device)
        while pending:
            yield _finish(pending.popleft(), preprocessing, targets, device)


def _load(images: Images, preprocessing: Preprocessing, positions: Tensor) -> tuple[Tensor, bool]:
    """Stack decoded images: as stored if all are small and of one size (they are resized on the device)."""
    height, width = preprocessing.crop
    found: list[tuple[Tensor, bool]] = []
    for position in positions.tolist():
        pixels = images.pixels(position, preprocessing.channels)
        large = pixels.shape[-2] > height or pixels.shape[-1] > width
        found.append((preprocessing.fit(pixels) if large else pixels, large))  # never a batch of full-size photographs
    if not any(fitted for _, fitted in found) and len({pixels.shape for pixels, _ in found}) == 1:
        return torch.stack([pixels for pixels, _ in found]), False
    return torch.stack([pixels if fitted else preprocessing.fit(pixels) for pixels, fitted in found]), True


def _finish(
    loaded: tuple[Tensor, Future[tuple[Tensor, bool]]],
    preprocessing: Preprocessing,
    targets: Tensor,
    device: torch.device,
) -> Batch:
    positions, future = loaded
    pixels, fitted = future.result()
    pixels = pixels.to(device)
    return Batch(pixels if fitted else preprocessing.fit(pixels), targets[positions].to(device), positions)


def loader_batches(loader: Iterable[LabelledImages], device: torch.device, ranks: Ranks = ALONE) -> Batches:
    """Passes over somebody else's batches of (images, labels): taken once, kept, their order drawn for each pass."""
    kept: list[Batch] = []
    for batch in loader:
        if not (isinstance(batch, (tuple, list)) and len(batch) == 2):
            raise RequestError(
                f"The forget loader must yield (images, labels), got {type(batch).__name__}.",
                where="forget=",
                fix="Yield a tensor of images and a tensor of class indices.",
            )
        images, labels = batch
        if len(images):
            first = sum(len(earlier.labels) for earlier in kept)
            there = torch.arange(first, first + len(images))
            mine = images[ranks.share(there) - first] if ranks.size > 1 else images
            kept.append(Batch(mine.to(device), labels.to(device), there))
    if not kept:
        raise RequestError("The forget set is empty.", where="forget=", fix="Pass at least one (images, labels) batch.")
    return lambda seed: (kept[position] for position in order(len(kept), seed).tolist())


def resident(images: Images, preprocessing: Preprocessing, device: torch.device) -> Tensor | None:
    """Every image as stored, uint8, on the GPU: if there is one, all are of one small size, and they fit."""
    if device.type != "cuda":
        return None
    free, _total = torch.cuda.mem_get_info(device)
    return shelved(images, preprocessing, device, free // SHARE)


def shelved(images: Images, preprocessing: Preprocessing, device: torch.device, room: int) -> Tensor | None:
    """Every image as stored, on a device; None where they are of several sizes or large, or their source is.

    Each image of a source is decoded and sent once, whichever subsets of it are asked for later.
    """
    if not len(images):
        return None
    key = (preprocessing.channels, str(device))
    shelf = images.cache.shelves.get(key)
    if shelf is None:
        first, resized = _load(images, preprocessing, torch.tensor([0]))
        if resized or first.nbytes * len(images.all_ids) > room:
            return None
        shelf = images.cache.shelves[key] = Shelf(len(images.all_ids), first[0], device)
    missing = (~shelf.filled[images.rows]).nonzero()[:, 0]
    every = torch.split(missing, EVALUATION_BATCH) if len(missing) else ()
    with ThreadPoolExecutor(min(SMALL_WORKERS, os.cpu_count() or 1)) as pool:
        loaded = pool.map(lambda positions: _load(images, preprocessing, positions), every)
        for positions, (pixels, resized) in zip(every, loaded, strict=True):
            if resized or pixels.shape[1:] != shelf.pixels.shape[1:]:
                pool.shutdown(cancel_futures=True)
                return None
            rows = images.rows[positions]
            shelf.pixels[rows.to(device)] = pixels.to(device)
            shelf.filled[rows] = True
    return shelf.pixels[images.rows.to(device)]
