"""Label annealing: give the forget set the label distribution of the retained images, train on both, and repeat."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from famr.baselines.descent import ADAM, Descent, Steps
from famr.baselines.session import BaselineSession, WeightBaseline


def class_quotas(counts: Tensor, images: int) -> Tensor:
    """Number of images for each class, proportional to `counts` and rounded by the largest remainders.

    Args:
        counts: Retained images of each class, (classes,).
        images: Images to distribute.

    Returns:
        Whole numbers that add up to `images`, (classes,).

    >>> class_quotas(torch.tensor([50, 0, 25, 25]), images=6)
    tensor([3, 0, 2, 1])
    """
    exact = counts.double() * images / counts.sum()
    quotas = exact.floor().long()
    missing = images - int(quotas.sum())
    quotas[torch.argsort(quotas.double() - exact, stable=True)[:missing]] += 1
    return quotas


def annealed_labels(scores: Tensor, quotas: Tensor) -> Tensor:
    """A label for each image so that class c gets `quotas[c]` of them; the pairs with the largest scores come first.

    Args:
        scores: Of each image and class, (images, classes).
        quotas: Images of each class, (classes,); as many as there are images.

    Returns:
        (images,).

    >>> annealed_labels(torch.tensor([[0.9, 0.1], [0.8, 0.2]]), torch.tensor([1, 1]))
    tensor([0, 1])
    """
    images, classes = scores.shape
    labels, free = [-1] * images, quotas.tolist()
    for pair in torch.argsort(scores.flatten(), descending=True, stable=True).tolist():
        image, label = divmod(pair, classes)
        if labels[image] < 0 and free[label] > 0:
            labels[image] = label
            free[label] -= 1
    return torch.tensor(labels)


def label_annealing_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """CE(D_r ∪ {(x, y′)}), y′ the annealed labels [Panda et al. 2025].

    Args:
        logits: Of images of both sets, (batch, classes).
        labels: True classes of retained images, y′ of forget images.
    """
    return F.cross_entropy(logits, labels)


@dataclass(frozen=True)
class LabelAnnealing(WeightBaseline):
    """In turn: distribute labels over D_f by the model's predictions, then CE on both sets [Panda et al. 2025].

    The two stages and their repetition are in the paper's abstract. How the labels are distributed is our reading:
    each class gets the share of D_f that it has of D_r, the most probable pairs of image and class first. Retained
    images keep their labels. BatchNorm keeps its statistics.

    Attributes:
        steps: 5 epochs, each one a round of both stages; our choice, as is η.
    """

    steps: Steps = field(default_factory=lambda: Steps(epochs=5, learning_rate=1e-2))

    name = "label annealing"
    paper = "Panda et al. 2025"
    kinds = ("class", "concept", "style")
    refusal_reason = (
        "it gives the forget set the label distribution of the rest, which single samples of classes that stay have "
        "already"
    )
    tuning = (
        {"learning_rate": 3e-3},
        {"learning_rate": 3e-2},
        {**ADAM, "learning_rate": 3e-5},
        {**ADAM, "learning_rate": 1e-4},
        {**ADAM, "learning_rate": 3e-4},
    )

    def change(self, session: BaselineSession) -> None:
        """See `WeightBaseline.change`."""
        steps, size = self.steps, self.steps.batch_size
        counts = torch.bincount(session.retain.targets, minlength=session.classes)
        quotas = class_quotas(counts, len(session.forget))
        descent = Descent(session, steps, total=steps.epochs * session.mixed_steps(size))

        def loss(images: Tensor, labels: Tensor) -> Tensor:
            return label_annealing_loss(session.logits(images), labels)

        for epoch in descent.epochs(phase="round"):
            labels = annealed_labels(session.predictions(session.forget).logits.softmax(dim=-1), quotas)
            for batch in descent.within(session.mixed_batches(size, epoch, labels)):
                descent.step(loss, batch.images, batch.labels)
