"""A certified head on digits: how many removals its budget allows, their cost, and their distance to retraining.

    python -m benchmarks.certified_head --output benchmarks/results/certified_head-digits.json

The backbone is a small ViT trained on one half of the images and the head on the other half, so that the assumption
about the backbone holds. Times are of single removals and of training the head anew, in one run.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

import torch

import famr
from benchmarks.cells import log, parser_for, small_vit, write_results
from famr.certificates.convex_head import (
    CertifiedHead,
    LabelledFeatures,
    RemovalSettings,
    remove,
    train_certified_head,
)
from famr.certificates.logistic import signs_of, solve_head
from famr.data.augmentation import Augmentation
from famr.engine.features import head_features
from famr.errors import GateError
from famr.runs.folder import environment

SETTINGS = [(1e-2, 1.0), (1e-2, 0.1), (1e-3, 1.0), (1e-3, 0.1)]
EPSILON, DELTA = 1.0, 1e-5


def main() -> None:
    output = parser_for(__doc__).parse_args().output
    device = torch.device("cpu")
    data = famr.open_data("digits")
    assert data.test is not None
    half = torch.arange(len(data.train)) % 2 == 0
    training = famr.Training(
        epochs=30, batch_size=32, learning_rate=3e-3, augmentation=Augmentation(smallest_area=0.9, mirror=False)
    )
    backbone = famr.fit(small_vit(data.labels)(0), data.train.where(half), training, device="cpu").model
    images = data.train.where(~half)
    trained_on = LabelledFeatures(head_features(backbone, images, device), images.targets)
    test_features = head_features(backbone, data.test, device)
    cells = []
    for strength, sigma in SETTINGS:
        settings = RemovalSettings(strength, sigma, EPSILON, DELTA)
        start = time.perf_counter()
        head = train_certified_head(trained_on, 10, settings, generator=torch.Generator().manual_seed(0))
        seconds = time.perf_counter() - start
        cell = {**asdict(settings), **_removals(head, trained_on), "seconds_of_training": seconds}
        for name, weights in (("released", head.released), ("without_noise", head.state)):
            cell[f"accuracy_{name}"] = float(
                ((test_features @ weights.mT).argmax(dim=1) == data.test.targets).double().mean()
            )
        cells.append(cell)
        log(str(cell))
    count, width = trained_on.features.shape
    facts = {"benchmark": "certified_head-digits", "images": count, "classes": 10, "width": width}
    write_results(output, {**facts, "environment": environment("cpu"), "cells": cells})


def _removals(head: CertifiedHead, data: LabelledFeatures) -> dict[str, Any]:
    """Remove image after image until the budget refuses."""
    seconds, draws, strength = 0.0, torch.Generator().manual_seed(1), head.settings.strength
    while head.count > 100:
        left, removed = (LabelledFeatures(*(each[rows] for each in data)) for rows in (slice(1, None), slice(1)))
        start = time.perf_counter()
        try:
            head = remove(head, left, removed, generator=draws)
        except GateError:
            break
        seconds, data = seconds + time.perf_counter() - start, left
    exact = solve_head(data.features, signs_of(data.labels, len(head.state)), strength)
    return {
        "removals_within_budget": head.removed,
        "seconds_a_removal": seconds / max(head.removed, 1),
        "distance_to_retraining": float((head.state - exact).norm()),
        "its_bound": head.residual / (strength * head.count),
        "noise_in_each_weight": head.noise,
    }


if __name__ == "__main__":
    main()
