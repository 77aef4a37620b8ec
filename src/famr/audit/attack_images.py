"""The images of the attacks that train: they follow from the seed alone, so that every model gets the same ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import torch
from torch import Tensor

from famr.data import Images
from famr.data.loaders import epoch_seed, image_batches, order
from famr.data.splits import Splits, sample_per_class
from famr.data.transforms import Preprocessing
from famr.errors import DataError

CHECKED = 100
"""The most forgotten images on which an attack is checked."""
CHECKED_SEED = 0
"""The checked images are drawn once, for all seeds of an attack: its draws are then averaged image by image."""
AT_MOST = 500
"""Retained images to draw from, and held-out ones to evaluate on."""


@dataclass(frozen=True, eq=False)
class AttackImages:
    """The images of one run of an attack, the same for every model.

    Attributes:
        learned: Forgotten images to learn from.
        checked: Other forgotten images, on which accuracy is measured; the same for every seed.
        retain: Retained images to learn from as well; None without.
        test: Held-out retained images, to see what the attack costs; None without.
        forgotten: Classes of `learned` that are forgotten as a whole.
        seed: Of the draw and of the order of the batches.
    """

    learned: Images
    checked: Images
    retain: Images | None
    test: Images | None
    forgotten: frozenset[int]
    seed: int

    @classmethod
    def draw(cls, splits: Splits, images: int, seed: int) -> AttackImages:
        """Draw the images.

        Args:
            splits: Of the request.
            images: Forgotten images of each class to learn from.
            seed: Of the draw.

        Raises:
            DataError: Where no forget image is left to measure accuracy on.
        """
        forget = splits.forget
        rest = _without(forget, sample_per_class(forget, images, CHECKED_SEED))
        if not len(rest):
            raise DataError(
                f"All {len(forget)} forget images would be learned from; none is left to measure accuracy on.",
                fix="Let the model learn from fewer.",
            )
        checked = rest.take(order(len(rest), CHECKED_SEED)[:CHECKED])
        learned = sample_per_class(_without(forget, checked), images, seed)
        retain, test = (
            None if given is None else given.take(order(len(given), seed)[:AT_MOST])
            for given in (splits.retain, splits.test)
        )
        forgotten = frozenset(splits.forgotten_classes()) & frozenset(learned.targets.tolist())
        return cls(learned, checked, retain, test, forgotten, seed)


def _without(images: Images, others: Images) -> Images:
    return images.where(~torch.isin(images.rows, others.rows))


def endless_batches(
    images: Images, preprocessing: Preprocessing, batch_size: int, device: torch.device, seed: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Images and labels from one random order after another, in batches of one size: a shorter last one is left out.

    Args:
        images: The set.
        preprocessing: Of the model.
        batch_size: Images of a batch; all of them where there are fewer.
        device: Where the batches are made.
        seed: Of the orders.
    """
    size = min(batch_size, len(images))
    batches = image_batches(images, preprocessing, size, device)
    for epoch in count():
        for batch in batches(epoch_seed(seed, epoch)):
            if len(batch.labels) == size:
                yield batch.images, batch.labels


def mixed_batches(
    task: AttackImages, preprocessing: Preprocessing, batch_size: int, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless batches of forgotten images, with as many retained ones where there are any.

    Args:
        task: The images.
        preprocessing: Of the model.
        batch_size: Forgotten images of a batch.
        device: Where the batches are made.
    """
    learned = endless_batches(task.learned, preprocessing, batch_size, device, task.seed)
    if task.retain is None:
        yield from learned
        return
    size = min(batch_size, len(task.learned))
    retained = endless_batches(task.retain, preprocessing, size, device, task.seed)
    for (images, labels), (other_images, other_labels) in zip(learned, retained, strict=True):
        yield torch.cat([images, other_images]), torch.cat([labels, other_labels])
