"""A model that hides the threes behind its bias, and comparisons of weights."""

from __future__ import annotations

import torch

import famr


def with_low_bias(original: famr.Classifier, by: float = 20.0) -> famr.Classifier:
    """The original with a lower bias for the threes in its head, and nothing else changed."""
    hidden = original.copy()
    with torch.no_grad():
        hidden.module.head.bias[3] -= by  # type: ignore[union-attr,index,operator]
    return hidden


def weights_of(model: famr.Classifier) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.module.parameters()]


def same_weights(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
