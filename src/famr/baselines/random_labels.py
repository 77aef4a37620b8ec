"""Random labels: train on the forget set with wrong labels, together with the retained images."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from famr.baselines.base import numbers
from famr.baselines.descent import ADAM, Descent, Steps
from famr.baselines.session import BaselineSession, WeightBaseline
from famr.errors import RequestError


def other_labels(labels: Tensor, allowed: Tensor, uniform: Tensor) -> Tensor:
    """A uniformly drawn wrong label for each image.

    Args:
        labels: True classes, (images,).
        allowed: Classes to draw from, sorted.
        uniform: Random numbers in [0, 1), (images,).

    Returns:
        One of the allowed classes for each image, never its own.

    >>> other_labels(torch.tensor([1, 1, 7]), torch.tensor([0, 1, 2]), torch.tensor([0.1, 0.9, 0.9]))
    tensor([0, 2, 2])
    """
    index = torch.searchsorted(allowed, labels).clamp(max=len(allowed) - 1)
    own = allowed[index] == labels
    pick = (uniform * (len(allowed) - own.long())).long()
    return allowed[pick + (own & (pick >= index)).long()]


def draw_wrong_labels(session: BaselineSession) -> Tensor:
    """A wrong label for each forget image, of a class that is not forgotten; the same in every epoch.

    Args:
        session: The run.

    Raises:
        RequestError: The request leaves fewer than two classes.
    """
    forgotten = session.splits.forgotten_classes()
    allowed = torch.tensor([index for index in range(session.classes) if index not in forgotten], dtype=torch.long)
    if len(allowed) < 2:
        raise RequestError(
            f"Random labels need two classes that are not forgotten, this request leaves {len(allowed)}.",
            where=session.splits.request.describe(),
            fix="Use another method.",
        )
    uniform = torch.rand(len(session.forget), generator=session.generator())
    return other_labels(session.forget.targets, allowed, uniform).to(session.device)


def random_label_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """CE(D_r ∪ {(x, y′)}) [Golatkar et al. 2020; Graves et al. 2021].

    Args:
        logits: Of images of both sets, (batch, classes).
        labels: True classes of retained images, y′ of forget images.
    """
    return F.cross_entropy(logits, labels)


@dataclass(frozen=True)
class RandomLabels(WeightBaseline):
    """L = CE on D_r ∪ {(x, y′) : x ∈ D_f}, y′ ≠ y drawn once an image [Golatkar et al. 2020; Graves et al. 2021].

    A batch holds both sets in their proportion. BatchNorm keeps its statistics.

    Attributes:
        steps: 10 epochs, batches of 256 [Fan et al. 2024]; η is our choice. The published numbers are those of Graves
            et al. in the code of [Foster et al. 2024].
    """

    steps: Steps = field(default_factory=lambda: Steps(epochs=10, learning_rate=1e-2))

    name = "random labels"
    paper = "Graves et al. 2021"
    published = numbers(
        optimiser="adam",
        learning_rate=1e-4,
        epochs=3,
        batch_size=128,
        weight_decay=0.0,
        schedule="constant",
        training_mode=True,
    )
    tuning = (
        {"learning_rate": 3e-3},
        {"learning_rate": 3e-2},
        {**ADAM, "learning_rate": 3e-5},
        {**ADAM, "learning_rate": 3e-4},
    )

    def change(self, session: BaselineSession) -> None:
        """See `WeightBaseline.change`."""
        steps, size = self.steps, self.steps.batch_size
        wrong = draw_wrong_labels(session)
        descent = Descent(session, steps, total=steps.epochs * session.mixed_steps(size))

        def loss(images: Tensor, labels: Tensor) -> Tensor:
            return random_label_loss(session.logits(images), labels)

        for epoch in descent.epochs():
            for batch in descent.within(session.mixed_batches(size, epoch, labels=wrong)):
                descent.step(loss, batch.images, batch.labels)
