"""Centred kernel alignment: how similar two networks' features of the same images are [Kornblith et al. 2019]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from famr.data import Images
from famr.engine.features import PENULTIMATE, layer_features
from famr.errors import DataError
from famr.models import Classifier
from famr.models.layers import block_names


def linear_cka(first: Tensor, second: Tensor) -> float:
    """‖XᵀY‖²_F / (‖XᵀX‖_F ‖YᵀY‖_F) of centred features; 1 where one is the other rotated and scaled.

    This is the plain (biased) estimate: with fewer images than channels even unrelated features look similar, near
    channels / (images + channels). Compare it between models on the same images, not with a fixed number.

    Args:
        first: X, (images, channels).
        second: Y, (images, channels'), of the same images.

    Returns:
        NaN for features that are the same for all images.

    Raises:
        DataError: For different numbers of images, or fewer than two.

    >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]])
    >>> round(linear_cka(x, 5 * x.flip(1) + 3), 6)
    1.0
    >>> linear_cka(torch.tensor([[1.0], [-1.0], [0.0]]), torch.tensor([[1.0], [1.0], [-2.0]]))  # uncorrelated
    0.0
    """
    if len(first) != len(second) or len(first) < 2:
        raise DataError(
            f"CKA compares features of the same two or more images, got {len(first)} and {len(second)} rows.",
            fix="Take both from the same set.",
        )
    x, y = (features.double() - features.double().mean(dim=0) for features in (first, second))
    between, within_x, within_y = (torch.linalg.matrix_norm(a.T @ b) for a, b in ((x, y), (x, x), (y, y)))
    return float(between.square() / (within_x * within_y))


def layer_cka(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> dict[str, float]:
    """CKA of each layer that both models have, in the order of the first.

    Args:
        first: Features by layer, each (images, channels).
        second: The same of the second model.
    """
    return {layer: linear_cka(features, second[layer]) for layer, features in first.items() if layer in second}


def cka_to_models(
    model: Classifier,
    others: Mapping[str, Classifier],
    sets: Mapping[str, Images],
    device: torch.device,
    layers: Sequence[str] | None = None,
) -> dict[str, dict[str, dict[str, float]]]:
    """CKA between a model and each of several others, on several sets of images.

    Args:
        model: The model under audit.
        others: Models to compare it with, by name.
        sets: Images, by name.
        device: Where the features are computed.
        layers: Names of layers; None: each block, and the penultimate features.

    Returns:
        By name of the other model, name of the set and name of the layer.
    """
    names = (*block_names(model), PENULTIMATE) if layers is None else tuple(layers)
    similarity: dict[str, dict[str, dict[str, float]]] = {name: {} for name in others}
    for set_name, images in sets.items() if others and names else ():
        features = layer_features(model, images, device, names)
        for name, other in others.items():
            shared = {layer for layer, _ in other.module.named_modules()} | {PENULTIMATE}
            other_features = layer_features(other, images, device, [layer for layer in names if layer in shared])
            similarity[name][set_name] = layer_cka(features, other_features)
    return similarity
