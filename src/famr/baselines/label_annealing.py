"""Label annealing: hand out new labels to the forget set so that it looks like the rest, train on them, and again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from famr.baselines.descent import RATES, Descent, Steps
from famr.baselines.work import WeightChange, Work
from famr.data.request import Kind


def quotas(counts: Tensor, images: int) -> Tensor:
    """How many of `images` each class gets, in the proportion of `counts`; whole numbers that add up.

    >>> quotas(torch.tensor([50, 0, 25, 25]), images=6)
    tensor([3, 0, 2, 1])
    """
    exact = counts.double() * images / counts.sum()
    whole = exact.floor().long()
    left = images - int(whole.sum())
    whole[torch.argsort(whole.double() - exact, stable=True)[:left]] += 1  # the largest remainders first
    return whole


def annealed_labels(scores: Tensor, places: Tensor) -> Tensor:
    """A label for each image such that class c has `places[c]` of them: the surest pairs of image and class first.

    >>> annealed_labels(torch.tensor([[0.9, 0.1], [0.8, 0.2]]), torch.tensor([1, 1]))
    tensor([0, 1])
    """
    images, classes = scores.shape
    labels, free = [-1] * images, places.tolist()
    open_ = images
    for pair in torch.argsort(scores.flatten(), descending=True, stable=True).tolist():
        image, label = divmod(pair, classes)
        if labels[image] < 0 and free[label] > 0:
            labels[image] = label
            free[label] -= 1
            open_ -= 1
            if not open_:
                break
    return torch.tensor(labels)


def label_annealing_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """CE on a batch of both sets, with the handed-out labels on the forget images."""
    return F.cross_entropy(logits, labels)


@dataclass(frozen=True)
class LabelAnnealing(WeightChange):
    """In turn: give the forget set pseudo-labels, redistributed by the model's present answers so that they have the
    distribution of the retained classes; then train on both sets [Panda et al. 2025].

    The two stages and their repetition are the paper's (its abstract); how it redistributes, and every number here, is
    our reading: each class gets its share of the forget set, the surest image first. Retained images keep their labels.
    BatchNorm stays as it is.
    """

    steps: Steps = field(default_factory=lambda: Steps(epochs=5, learning_rate=1e-2))
    """An epoch is one round of both stages."""

    name: ClassVar[str] = "label annealing"
    paper: ClassVar[str] = "Panda et al. 2025"
    kinds: ClassVar[tuple[Kind, ...]] = ("class", "concept", "style")
    why_not: ClassVar[str] = (
        "it gives the forget set the label distribution of the rest, which single samples of classes that stay have "
        "already"
    )

    def trials(self) -> Iterator[Self]:
        """Six learning rates."""
        for steps in self.steps.at(RATES):
            yield replace(self, steps=steps)

    def change(self, work: Work) -> None:
        """Rounds of relabelling and training."""
        steps, size = self.steps, self.steps.batch_size
        part = work.share_of_forget(size)
        rest = max(1, size - part)
        counts = torch.bincount(work.retained.images.targets, minlength=work.classes)
        places = quotas(counts, len(work.forget_shelf))
        descent = Descent(work, steps, steps.epochs * work.steps_of_retain(rest))

        def loss(images: Tensor, labels: Tensor) -> Tensor:
            return label_annealing_loss(work.logits(images), labels)

        for epoch in range(1, steps.epochs + 1):
            scores = torch.softmax(work.answers(work.splits.forget).logits, dim=-1)
            given = annealed_labels(scores, places).to(work.device)
            for forget, retain in work.both(part, rest, epoch, steps.augmentation):
                labels = torch.cat([given[forget.positions.to(work.device)], retain.labels])
                descent.step(loss, torch.cat([forget.images, retain.images]), labels)
            descent.end_of(f"round {epoch}")
