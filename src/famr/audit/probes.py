"""Reading a class off frozen features with few labelled images: linear probe, nearest neighbours, prototypes."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from famr.engine.devices import single_thread
from famr.errors import DataError
from famr.targets.probe import probe_target

NEIGHBOURS = 5

Classify = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Labelled features (n, channels), their labels (n,) and query features (m, channels) → predicted labels (m,)."""


@dataclass(frozen=True)
class FewShot:
    """The labelled images that an attacker has.

    Attributes:
        shots: Images of each class.
        draws: Times that they are drawn anew; results are means over the draws.
        seed: Of the first draw; each further draw has the next seed.
    """

    shots: int
    draws: int
    seed: int = 0

    @property
    def pool(self) -> int:
        """Images of each class to draw from."""
        return self.shots * self.draws


def few_of_each(labels: Tensor, count: int, seed: int) -> Tensor:
    """Indices of up to `count` examples of each label.

    Args:
        labels: (n,).
        count: Examples of each label; all where there are fewer.
        seed: Of the draw.

    >>> labels = torch.tensor([0, 0, 0, 1, 1, 2])
    >>> labels[few_of_each(labels, 2, seed=0)]
    tensor([0, 0, 1, 1, 2])
    """
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    grouped = shuffled[labels[shuffled].argsort(stable=True)]  # by label, each in the drawn order
    sizes = torch.unique(labels, return_counts=True)[1]
    first = (sizes.cumsum(0) - sizes).repeat_interleave(sizes)  # where the group of each begins
    return grouped[torch.arange(len(labels)) - first < count]


def few_shot_hits(
    classify: Classify, known: Tensor, labels: Tensor, queries: Tensor, truth: Tensor, few_shot: FewShot
) -> Tensor:
    """The share of draws in which each query is classified correctly.

    Args:
        classify: The attack.
        known: Features to draw the labelled images from, (n, channels).
        labels: Their labels, (n,).
        queries: Features of held-out images, (m, channels).
        truth: Their labels, (m,).
        few_shot: How many labelled images, how often drawn.

    Returns:
        (m,), from 0 to 1.
    """
    hits = []
    for draw in range(few_shot.draws):
        few = few_of_each(labels, few_shot.shots, few_shot.seed + draw)
        hits.append((classify(known[few], labels[few], queries) == truth).float())
    return torch.stack(hits).mean(dim=0)


def probe_predictions(known: Tensor, labels: Tensor, queries: Tensor) -> Tensor:
    """Labels by a logistic regression on standardised features; a `Classify`.

    Args:
        known: (n, channels).
        labels: (n,), of at least two classes.
        queries: (m, channels).
    """
    return probe_target(known, labels, queries, int(labels.max()) + 1).argmax(dim=1)


def neighbour_predictions(known: Tensor, labels: Tensor, queries: Tensor, neighbours: int = NEIGHBOURS) -> Tensor:
    """Labels by a vote of the nearest features by cosine similarity, ties to the smallest label; a `Classify`.

    Args:
        known: (n, channels).
        labels: (n,).
        queries: (m, channels).
        neighbours: How many vote; all where there are fewer.

    >>> known, labels = torch.tensor([[1.0, 0.0], [2.0, 0.1], [0.0, 1.0]]), torch.tensor([4, 4, 7])
    >>> neighbour_predictions(known, labels, torch.tensor([[9.0, 1.0], [0.1, 0.2]]), neighbours=1)
    tensor([4, 7])
    """
    from sklearn.neighbors import KNeighborsClassifier

    points, directions = (F.normalize(features.double(), dim=1).numpy() for features in (known, queries))
    with single_thread():
        votes = KNeighborsClassifier(min(neighbours, len(known))).fit(points, labels.numpy())
        return torch.from_numpy(votes.predict(directions)).long()


def prototype_head(
    weight: Tensor, bias: Tensor | None, features: Tensor, labels: Tensor, classes: Collection[int]
) -> tuple[Tensor, Tensor]:
    """A head whose rows for `classes` are the mean direction of the features with that label.

    w_c = ℓ · m / ‖m‖ with m = mean of φ/‖φ‖ over the images of class c and ℓ the mean norm of the remaining rows;
    b_c = the mean bias of the remaining rows, so that the class is neither preferred nor suppressed. Nothing is taken
    from the old rows of `classes`.

    Args:
        weight: Of the head, (classes, channels).
        bias: Of the head, (classes,); None: zeros.
        features: Penultimate features, (images, channels).
        labels: (images,).
        classes: The rows to replace.

    Returns:
        The new weight and bias.

    Raises:
        DataError: Where no row remains, or a class has no image.

    >>> weight, bias = torch.tensor([[0.0, 3.0], [9.0, 9.0]]), torch.tensor([1.0, -50.0])
    >>> prototype_head(weight, bias, torch.tensor([[7.0, 0.0]]), torch.tensor([1]), classes=[1])
    (tensor([[0., 3.],
            [3., 0.]]), tensor([1., 1.]))
    """
    weight = weight.detach().clone()
    bias = torch.zeros(len(weight)) if bias is None else bias.detach().clone()
    remaining = [row for row in range(len(weight)) if row not in classes]
    if not remaining:
        raise DataError("Every class is forgotten: no row is left to take the length of a prototype from.")
    length, mean_bias = weight[remaining].norm(dim=1).mean(), bias[remaining].mean()
    for row in classes:
        if not bool((labels == row).any()):
            raise DataError(f"There is no image of class {row} to make its prototype from.")
        mean = F.normalize(features[labels == row], dim=1).mean(dim=0)
        weight[row], bias[row] = length * F.normalize(mean, dim=0), mean_bias
    return weight, bias
