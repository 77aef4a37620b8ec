"""Reading a class off frozen features: linear probe, nearest neighbours and prototypes, as functions of tensors."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor
from torch.nn import functional as F

from famr.engine.devices import single_thread
from famr.errors import DataError
from famr.targets.probe import probe_target

NEIGHBOURS = 5


def few_of_each(labels: Tensor, count: int, seed: int) -> Tensor:
    """Places of up to `count` examples of each label, drawn with `seed`.

    >>> labels = torch.tensor([0, 0, 0, 1, 1, 2])
    >>> labels[few_of_each(labels, 2, seed=0)]
    tensor([0, 0, 1, 1, 2])
    """
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    grouped = shuffled[labels[shuffled].argsort(stable=True)]  # by label, each in the drawn order
    sizes = torch.unique(labels, return_counts=True)[1]
    first = (sizes.cumsum(0) - sizes).repeat_interleave(sizes)  # where the label of each begins
    return grouped[torch.arange(len(labels)) - first < count]


def probe_answers(known: Tensor, labels: Tensor, asked: Tensor) -> Tensor:
    """The labels that a logistic regression on standardised `known` features gives to the `asked` ones."""
    return probe_target(known, labels, asked, int(labels.max()) + 1).argmax(dim=1)


def neighbour_answers(known: Tensor, labels: Tensor, asked: Tensor, neighbours: int = NEIGHBOURS) -> Tensor:
    """The commonest label among the nearest `known` features by angle; of equally common ones the smallest.

    >>> known, labels = torch.tensor([[1.0, 0.0], [2.0, 0.1], [0.0, 1.0]]), torch.tensor([4, 4, 7])
    >>> neighbour_answers(known, labels, torch.tensor([[9.0, 1.0], [0.1, 0.2]]), neighbours=1)
    tensor([4, 7])
    """
    from sklearn.neighbors import KNeighborsClassifier

    points, queries = (F.normalize(found.double(), dim=1).numpy() for found in (known, asked))
    with single_thread():
        votes = KNeighborsClassifier(min(neighbours, len(known))).fit(points, labels.numpy())
        return torch.from_numpy(votes.predict(queries)).long()


def prototype_head(
    weight: Tensor, bias: Tensor | None, features: Tensor, labels: Tensor, classes: Collection[int]
) -> tuple[Tensor, Tensor]:
    """A head whose rows for `classes` are the mean of the normalised features with that label.

    Nothing in the head itself is taken from the old rows: a new row is made as long as the others are in the mean, and
    gets their mean bias, so that the class is neither preferred nor held back.

    >>> weight, bias = torch.tensor([[0.0, 3.0], [9.0, 9.0]]), torch.tensor([1.0, -50.0])
    >>> prototype_head(weight, bias, torch.tensor([[7.0, 0.0]]), torch.tensor([1]), classes=[1])
    (tensor([[0., 3.],
            [3., 0.]]), tensor([1., 1.]))
    """
    weight = weight.detach().clone()
    bias = torch.zeros(len(weight)) if bias is None else bias.detach().clone()
    others = [row for row in range(len(weight)) if row not in classes]
    if not others:
        raise DataError("Every class is forgotten: no row is left to measure prototypes by.")
    length, level = weight[others].norm(dim=1).mean(), bias[others].mean()
    for row in classes:
        if not bool((labels == row).any()):
            raise DataError(f"There is no image of class {row} to make its prototype from.")
        mean = F.normalize(features[labels == row], dim=1).mean(dim=0)
        weight[row], bias[row] = length * F.normalize(mean, dim=0), level
    return weight, bias
