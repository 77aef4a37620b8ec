"""Which image trains where, how long and with which seed: the part of SISA that is only numbers.

Every image has one shard and one slice. A shard is trained slice after slice: stage k goes on from the weights after
stage k−1 with the images of slices 0..k [Bourtoule et al. 2021].
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from famr.errors import RequestError


class Place(NamedTuple):
    """Where an image is trained on, counted from 0."""

    shard: int
    slice: int


class Stage(NamedTuple):
    """One training: `images` images of a shard, those of slices 0 to `slice`, for some epochs."""

    shard: int
    slice: int
    images: int
    epochs: int
    passes: int
    """How often an image is shown to the network, all images together."""


@dataclass(frozen=True)
class Plan:
    """A keyed hash of its id gives an image its place, whatever other images there are.

    So removing an image moves no other one, and a training without it would make the same plan. Shards and slices
    are therefore only about equally large.

    >>> plan = Plan(shards=5, slices=4, seed=0)
    >>> plan.place("digits/7"), plan.place("digits/8")
    (Place(shard=4, slice=0), Place(shard=3, slice=3))
    """

    shards: int
    slices: int
    seed: int

    def __post_init__(self) -> None:
        for name in ("shards", "slices"):
            if getattr(self, name) < 1:
                raise RequestError(f"`{name}` must be at least 1, got {getattr(self, name)}.", where="Plan")

    def place(self, id_: str) -> Place:
        """The shard and the slice of an image."""
        number = _hash(id_, key=str(self.seed), size=8)
        return Place(number % self.shards, number // self.shards % self.slices)

    def stage_seed(self, shard: int, slice_: int) -> int:
        """The seed of one training; it depends on no image."""
        return _hash(f"{shard}/{slice_}", key=f"stage {self.seed}", size=5)  # times a million it still fits 64 bits

    def start_seed(self, shard: int) -> int:
        """The seed of a shard's starting weights."""
        return _hash(str(shard), key=f"start {self.seed}", size=5)

    def first_touched(self, removed: Iterable[str]) -> dict[int, int]:
        """For each shard that loses an image, the first slice that does."""
        first: dict[int, int] = {}
        for shard, slice_ in map(self.place, removed):
            first[shard] = min(slice_, first.get(shard, slice_))
        return first

    def stages(self, ids: Iterable[str], first: Mapping[int, int], epochs: int, batch_size: int) -> tuple[Stage, ...]:
        """The trainings of the shards in `first`, each from that slice on, with these images; 0 for all of a shard."""
        counts = Counter(map(self.place, ids))
        rounds = slice_epochs(epochs, self.slices)
        found = []
        for shard in sorted(first):
            for slice_ in range(first[shard], self.slices):
                images = sum(counts[Place(shard, earlier)] for earlier in range(slice_ + 1))
                passes = rounds[slice_] * shown(images, batch_size)
                found.append(Stage(shard, slice_, images, rounds[slice_], passes))
        return tuple(found)

    def all_stages(self, ids: Iterable[str], epochs: int, batch_size: int) -> tuple[Stage, ...]:
        """Every training, with these images: what is done without anything to go on from."""
        return self.stages(ids, dict.fromkeys(range(self.shards), 0), epochs, batch_size)


def slice_epochs(epochs: int, slices: int) -> tuple[int, ...]:
    """Epochs of each stage, so that all of them show as many images as `epochs` on the whole shard would.

    Stage k of R shows (k+1)/R of the shard, so 2·epochs/(R+1) epochs a stage make up for it [Bourtoule et al. 2021].
    Where that is no whole number, each stage is rounded so that the sum so far is nearest; the whole is then off by
    at most half an epoch.

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
    found: list[int] = []
    done = 0  # in slices
    for stage in range(1, slices + 1):
        missing = epochs * stage * (stage + 1) - done * (slices + 1)  # times (slices + 1)
        whole = stage * (slices + 1)
        found.append((2 * missing + whole) // (2 * whole))
        done += found[-1] * stage
    return tuple(found)


def shown(images: int, batch_size: int) -> int:
    """How many images `famr.fit` shows in one epoch: it drops a short last batch, unless there is no other.

    >>> shown(130, 64), shown(40, 64), shown(0, 64)
    (128, 40, 0)
    """
    return images if images < batch_size else images - images % batch_size


def _hash(text: str, key: str, size: int) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), key=key.encode(), digest_size=size).digest(), "big")
