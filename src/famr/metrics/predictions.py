"""A model's logits on sets of images, with the labels."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

UNLABELLED = -1
"""The class index of an image whose class is not known."""


@dataclass(frozen=True)
class Predictions:
    """A model's logits on a set of images, with the labels.

    Attributes:
        logits: (images, classes).
        targets: Class indices, (images,); `UNLABELLED` where the class is not known.
    """

    logits: Tensor
    targets: Tensor

    @property
    def labelled(self) -> bool:
        """Whether the class of every image is known."""
        return bool((self.targets != UNLABELLED).all())


@dataclass(frozen=True)
class SplitPredictions:
    """A model's predictions on the sets of a request that are evaluated.

    Attributes:
        forget: On the forget set.
        test: On held-out images that are not forgotten; None without such images.
        forget_test: On held-out images of the forgotten class, concept or style; None without such images.
    """

    forget: Predictions
    test: Predictions | None
    forget_test: Predictions | None
