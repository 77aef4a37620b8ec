"""Which proxy leaves out what: every class is left out by one proxy, every image by at least one more.

A proxy leaves out a group of classes, and of the other classes the images of one fold. Classes that are confused with
each other go into different groups, so that a proxy still knows what an unseen class looks like. The fold of an image
follows from its pixels, so that it is found again without the data; it is never the group of the image's class, so that
the proxy that answers for a sample knows its class.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

import torch
from torch import Tensor

from famr.data import Images
from famr.errors import RequestError

FEWEST = 3
"""Groups: with two, one proxy would have to leave out one class of two and all images of the other."""


def class_similarity(probabilities: Tensor, targets: Tensor, classes: int) -> Tensor:
    """How often classes are confused: the mean probability of class j on images of class i, made symmetric.

    Args:
        probabilities: Predictions on labelled images, (images, classes).
        targets: (images,).
        classes: C.

    Returns:
        (classes, classes), 0 on the diagonal.

    >>> class_similarity(torch.tensor([[0.7, 0.3], [0.1, 0.9]]), torch.tensor([0, 1]), 2)
    tensor([[0.0000, 0.2000],
            [0.2000, 0.0000]])
    """
    total = torch.zeros(classes, classes, dtype=probabilities.dtype).index_add(0, targets, probabilities)
    mean = total / torch.bincount(targets, minlength=classes).clamp(min=1)[:, None]
    return ((mean + mean.T) / 2).fill_diagonal_(0)


def class_groups(similarity: Tensor, groups: int) -> tuple[int, ...]:
    """The group of each class: equally many classes in each, and similar classes apart.

    Greedy: the class that is most similar to any other one comes first; each goes into the group, among the smallest
    ones with room, in which it has the least similarity to any member.

    Args:
        similarity: Of each pair of classes, symmetric.
        groups: How many.

    Raises:
        RequestError: Fewer than 3 groups.

    >>> near_pairs = torch.tensor([[0, 9, 0, 1], [9, 0, 1, 0], [0, 1, 0, 8], [1, 0, 8, 0.0]])
    >>> class_groups(near_pairs, 3)
    (0, 1, 2, 1)
    """
    if groups < FEWEST:
        raise RequestError(
            f"Proxies come in groups of at least {FEWEST}, got {groups}.", where="proxies", fix="Use 10, or 0 for none."
        )
    classes = len(similarity)
    room = -(-classes // groups)
    members: list[list[int]] = [[] for _ in range(groups)]
    for index in similarity.amax(dim=1).argsort(descending=True, stable=True).tolist():
        free = [group for group in range(groups) if len(members[group]) < room]
        closest = {group: float(similarity[index, members[group]].max()) if members[group] else 0.0 for group in free}
        members[min(free, key=lambda group: (closest[group], len(members[group]), group))].append(index)
    group_of = {index: group for group, inside in enumerate(members) for index in inside}
    return tuple(group_of[index] for index in range(classes))


def folds(images: Images, channels: int, group_of_class: Sequence[int], groups: int) -> Tensor:
    """For each image the proxy that leaves it out although it knows its class.

    Args:
        images: With labels.
        channels: As the network takes them.
        group_of_class: The group of each class.
        groups: How many.

    Returns:
        (images,), for no image the group of its class.
    """
    numbers = torch.tensor([pixel_number(images.pixels(position, channels)) for position in range(len(images))])
    own = torch.tensor(group_of_class)[images.targets]
    return (own + 1 + numbers % (groups - 1)) % groups


def pixel_number(pixels: Tensor) -> int:
    """A number from the size and the pixels of an image, the same for the same picture under any name.

    Args:
        pixels: uint8, (channels, height, width).

    >>> pixel_number(torch.zeros(1, 2, 2, dtype=torch.uint8)) == pixel_number(torch.zeros(1, 1, 4, dtype=torch.uint8))
    False
    """
    digest = sha256(str(tuple(pixels.shape)).encode())
    digest.update(pixels.contiguous().numpy().tobytes())
    return int.from_bytes(digest.digest()[:7], "big")
