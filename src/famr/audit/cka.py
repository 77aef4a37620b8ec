"""Centred kernel alignment: how alike two networks see the same images, layer by layer [Kornblith et al. 2019]."""

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
    """‖XᵀY‖²_F / (‖XᵀX‖_F ‖YᵀY‖_F) of centred features, one row an image; 1 where one is the other turned and scaled.

    This is the plain (biased) estimate: with fewer images than channels even unrelated features look alike, near
    channels / (images + channels). Compare it between models on the same images, not with a fixed number.
    Features that are the same for all images leave nothing to compare: nan.

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
    x, y = (found.double() - found.double().mean(dim=0) for found in (first, second))
    between, within_x, within_y = (torch.linalg.matrix_norm(a.T @ b) for a, b in ((x, y), (x, x), (y, y)))
    return float(between.square() / (within_x * within_y))


def layer_cka(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> dict[str, float]:
    """CKA of each layer that both have, in the order of the first."""
    return {layer: linear_cka(features, second[layer]) for layer, features in first.items() if layer in second}


def cka_to_others(
    model: Classifier,
    others: Mapping[str, Classifier],
    sets: Mapping[str, Images],
    device: torch.device,
    layers: Sequence[str] | None = None,
) -> dict[str, dict[str, dict[str, float]]]:
    """CKA to each other model, by the name of the other, the set of images and the layer; by default of each block."""
    names = (*block_names(model), PENULTIMATE) if layers is None else tuple(layers)
    alike: dict[str, dict[str, dict[str, float]]] = {name: {} for name in others}
    for set_name, images in sets.items() if others and names else ():
        ours = layer_features(model, images, device, names)
        for name, other in others.items():
            there = {layer for layer, _ in other.module.named_modules()} | {PENULTIMATE}
            theirs = layer_features(other, images, device, [layer for layer in names if layer in there])
            alike[name][set_name] = layer_cka(ours, theirs)
    return alike
