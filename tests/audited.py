"""Models that the audits of depth must tell apart: one retrained without the threes, one that hides them."""

from __future__ import annotations

from functools import cache

import torch

import famr
from conftest import SMALL_VIT
from famr.augmentation import Augmentation


@cache
def retrained() -> famr.Classifier:
    """As the original of the other tests, but trained without the threes."""
    digits = famr.open_data("digits")
    retain = famr.split(digits, famr.Request(classes=["3"])).retain
    assert retain is not None
    start = famr.new_model("timm:vit_tiny_patch16_224", digits.labels, from_scratch=True, arguments=SMALL_VIT)
    shifts = Augmentation(smallest_area=0.9, mirror=False)
    training = famr.Training(epochs=20, batch_size=64, learning_rate=3e-3, augmentation=shifts)
    return famr.fit(start, retain, training, device="cpu").model


def with_low_bias(original: famr.Classifier, by: float = 20.0) -> famr.Classifier:
    """The original, with the threes turned down in the head's bias and nothing else changed."""
    hidden = original.copy()
    with torch.no_grad():
        hidden.module.head.bias[3] -= by  # type: ignore[union-attr,index,operator]
    return hidden


def weights_of(model: famr.Classifier) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.module.parameters()]


def same_weights(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
