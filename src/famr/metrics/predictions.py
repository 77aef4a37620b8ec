"""A model's logits on a set of images, with the labels."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

UNLABELLED = -1
"""The target of an image whose class is not known."""


@dataclass(frozen=True)
class Predictions:
    """A model's logits on a set of images, with the labels."""

    logits: Tensor  # (images, classes)
    targets: Tensor  # (images,)

    @property
    def labelled(self) -> bool:
        """Whether every image has a class."""
        return bool((self.targets != UNLABELLED).all())


@dataclass(frozen=True)
class SplitPredictions:
    """A model's answers on the sets of a request that are measured."""

    forget: Predictions
    test: Predictions | None
    forget_test: Predictions | None
