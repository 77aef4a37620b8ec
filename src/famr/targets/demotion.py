"""What a demotion pushes forgotten classes below: KL alone is content when they are merely improbable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, Self

import torch
from torch import Tensor

from famr.losses.objective import log_odds, logit_excess


class Demotion(Protocol):
    """A penalty on the likelihood of forgotten classes, to be weighted by γ."""

    def excess(self, logits: Tensor, images: Tensor) -> Tensor:
        """The penalty of each image, (batch,).

        Args:
            logits: (batch, classes).
            images: Positions of the batch's images in the forget set, (batch,).
        """

    def to(self, device: torch.device) -> Self:
        """The same on a device.

        Args:
            device: Of the logits.
        """


@dataclass(frozen=True, eq=False)
class LowestQuarter:
    """Below a quarter of the remaining classes: `logit_excess`.

    Attributes:
        forgotten: Indices of the forgotten classes.
    """

    forgotten: Tensor

    def excess(self, logits: Tensor, images: Tensor) -> Tensor:  # noqa: ARG002
        """See `Demotion.excess`.

        Args:
            logits: (batch, classes).
            images: Not read: all images have the same classes.
        """
        return logit_excess(logits, self.forgotten)

    def to(self, device: torch.device) -> Self:
        """See `Demotion.to`.

        Args:
            device: Of the logits.
        """
        return type(self)(self.forgotten.to(device))


@dataclass(frozen=True, eq=False)
class OddsCeiling:
    """Below given log-odds ℓ: max(0, ℓ(z_θ) − ℓ)².

    Attributes:
        forgotten: For each image the forgotten classes whose odds are limited, (images, classes).
        others: The classes against which they are taken, (images, classes).
        highest: ℓ, (images,).
    """

    forgotten: Tensor
    others: Tensor
    highest: Tensor

    def excess(self, logits: Tensor, images: Tensor) -> Tensor:
        """See `Demotion.excess`.

        Args:
            logits: (batch, classes).
            images: Positions of the batch's images in the forget set, (batch,).
        """
        images = images.to(self.highest.device)
        odds = log_odds(logits, self.forgotten[images], self.others[images])
        return (odds - self.highest[images]).clamp(min=0).square()

    def to(self, device: torch.device) -> Self:
        """See `Demotion.to`.

        Args:
            device: Of the logits.
        """
        return type(self)(self.forgotten.to(device), self.others.to(device), self.highest.to(device))
