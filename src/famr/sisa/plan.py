"""Shard, slice, epochs and seed of every image: SISA without the training.

Every image has one shard and one slice. A shard is trained slice after slice: stage k starts from the weights after
stage k−1 and trains on the images of slices 0..k [Bourtoule et al. 2021].
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from famr.errors import RequestError


class Assignment(NamedTuple):
    """The shard and the slice an image is trained in, counted from 0.

    Attributes:
        shard: Index of the shard.
        slice: Index of the slice in its shard.
    """

    shard: int
    slice: int


class Stage(NamedTuple):
    """One training of a shard.

    Attributes:
        shard: Index of the shard.
        slice: Last slice trained on; the stage trains on slices 0 to `slice`.
        images: Number of images in these slices.
        epochs: Epochs over them.
        passes: Image passes: images in a training step, summed over its steps.
    """

    shard: int
    slice: int
    images: int
    epochs: int
    passes: int


@dataclass(frozen=True)
class ShardPlan:
    """Assigns an image to a shard and a slice by a keyed hash of its id, independently of all other images.

    Removing an image therefore moves no other one, and training without it would make the same plan. Shards and slices
    are for the same reason only about equally large.

    Attributes:
        shards: Number of shards, each a model.
        slices: Number of slices a shard.
        seed: Key of the hash, and source of every seed of the training.

    Raises:
        RequestError: `shards` or `slices` is below 1.

    >>> plan = ShardPlan(shards=5, slices=4, seed=0)
    >>> plan.assign("digits/7"), plan.assign("digits/8")
    (Assignment(shard=4, slice=0), Assignment(shard=3, slice=3))
    """

    shards: int
    slices: int
    seed: int

    def __post_init__(self) -> None:
        for name in ("shards", "slices"):
            if getattr(self, name) < 1:
                raise RequestError(f"`{name}` must be at least 1, got {getattr(self, name)}.", where="ShardPlan")

    def assign(self, id_: str) -> Assignment:
        """The shard and the slice of an image.

        Args:
            id_: Id of the image.
        """
        number = _hash(id_, key=str(self.seed), size=8)
        return Assignment(number % self.shards, number // self.shards % self.slices)

    def stage_seed(self, shard: int, slice_: int) -> int:
        """The seed of one stage; it depends on no image.

        Args:
            shard: Index of the shard.
            slice_: Last slice of the stage.
        """
        return _hash(f"{shard}/{slice_}", key=f"stage {self.seed}", size=5)  # times a million it still fits 64 bits

    def start_seed(self, shard: int) -> int:
        """The seed of a shard's starting weights.

        Args:
            shard: Index of the shard.
        """
        return _hash(str(shard), key=f"start {self.seed}", size=5)

    def first_touched(self, removed: Iterable[str]) -> dict[int, int]:
        """For each shard that loses an image, the first slice that loses one.

        Args:
            removed: Ids of the removed images.
        """
        first: dict[int, int] = {}
        for shard, slice_ in map(self.assign, removed):
            first[shard] = min(slice_, first.get(shard, slice_))
        return first

    def stages(self, ids: Iterable[str], first: Mapping[int, int], epochs: int, batch_size: int) -> tuple[Stage, ...]:
        """The stages that train some shards.

        Args:
            ids: Ids of the training images.
            first: For each shard to train, the slice of its first stage; 0 trains all of it.
            epochs: Epochs of a usual training, see `slice_epochs`.
            batch_size: Images in a training step.
        """
        counts = Counter(map(self.assign, ids))
        epochs_of = slice_epochs(epochs, self.slices)
        stages = []
        for shard in sorted(first):
            for slice_ in range(first[shard], self.slices):
                images = sum(counts[Assignment(shard, earlier)] for earlier in range(slice_ + 1))
                passes = epochs_of[slice_] * images_per_epoch(images, batch_size)
                stages.append(Stage(shard, slice_, images, epochs_of[slice_], passes))
        return tuple(stages)

    def all_stages(self, ids: Iterable[str], epochs: int, batch_size: int) -> tuple[Stage, ...]:
        """The stages that train every shard from its starting weights.

        Args:
            ids: Ids of the training images.
            epochs: Epochs of a usual training, see `slice_epochs`.
            batch_size: Images in a training step.
        """
        return self.stages(ids, dict.fromkeys(range(self.shards), 0), epochs, batch_size)


def slice_epochs(epochs: int, slices: int) -> tuple[int, ...]:
    """Epochs of each stage, so that all of them make as many image passes as `epochs` on the whole shard would.

    Stage k of R trains on (k+1)/R of the shard, so 2·epochs/(R+1) epochs a stage make up for it [Bourtoule et al.
    2021]. Where that is no whole number, each stage is rounded so that the sum so far is nearest; the whole is then off
    by at most half an epoch.

    Args:
        epochs: Epochs of a usual training.
        slices: Number of slices, R.

    Raises:
        RequestError: A stage would have less than one epoch.

    >>> slice_epochs(10, 4), slice_epochs(20, 4)
    ((4, 4, 4, 4), (8, 8, 8, 8))
    >>> slice_epochs(7, 3)  # 3.5 each
    (4, 3, 4)
    """
    if 2 * epochs < slices + 1:
        raise RequestError(
            f"{epochs} epochs are too few for {slices} slices: each gets 2·epochs/(slices + 1) of them, at least one.",
            where="training.epochs",
            fix=f"Train for {(slices + 2) // 2} epochs or more, or take fewer slices.",
        )
    rounded: list[int] = []
    done = 0  # passes over one slice
    for stage in range(1, slices + 1):
        missing = epochs * stage * (stage + 1) - done * (slices + 1)  # times (slices + 1)
        whole = stage * (slices + 1)
        rounded.append((2 * missing + whole) // (2 * whole))
        done += rounded[-1] * stage
    return tuple(rounded)


def images_per_epoch(images: int, batch_size: int) -> int:
    """Number of images `famr.fit` trains on in one epoch: it drops an incomplete last batch, unless it is the only one.

    Args:
        images: Number of training images.
        batch_size: Images in a training step.

    >>> images_per_epoch(130, 64), images_per_epoch(40, 64), images_per_epoch(0, 64)
    (128, 40, 0)
    """
    return images if images < batch_size else images - images % batch_size


def _hash(text: str, key: str, size: int) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), key=key.encode(), digest_size=size).digest(), "big")
