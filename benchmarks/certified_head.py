"""A certified head on digits: how many removals its budget allows, their cost, and their distance to retraining.

    python -m benchmarks.certified_head --output benchmarks/results/certified_head-digits.json

The backbone is a small ViT trained on one half of the images and the head on the other half, so that the assumption
about the backbone holds. Times are of single removals and of training the head anew, in one run.
"""

from __future__ import annotations

import time
from typing import Any

import torch

import famr
from benchmarks.cells import log, parser_for, small_vit, write_results
from famr.certificates.convex_head import CertifiedHead, remove, train_certified_head
from famr.certificates.logistic import minimise, signs_of
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
    features, labels = head_features(backbone, images, device), images.targets
    test_features = head_features(backbone, data.test, device)
    cells = []
    for strength, sigma in SETTINGS:
        noise = {"strength": strength, "sigma": sigma, "epsilon": EPSILON, "delta": DELTA}
        start = time.perf_counter()
        head = train_certified_head(features, labels, 10, **noise, generator=torch.Generator().manual_seed(0))
        trained = time.perf_counter() - start
        cell = {**noise, **_removals(head, features, labels), "seconds_of_training": trained}
        for name, weights in (("released", head.released), ("without_noise", head.state)):
            cell[f"accuracy_{name}"] = float(
                ((test_features @ weights.mT).argmax(dim=1) == data.test.targets).double().mean()
            )
        cells.append(cell)
        log(str(cell))
    facts = {"benchmark": "certified_head-digits", "images": len(labels), "classes": 10, "width": features.shape[1]}
    write_results(output, {**facts, "environment": environment("cpu"), "cells": cells})


def _removals(head: CertifiedHead, features: torch.Tensor, labels: torch.Tensor) -> dict[str, Any]:
    """Remove image after image until the budget refuses."""
    seconds, removed, draws = 0.0, 0, torch.Generator().manual_seed(1)
    while removed < len(labels) - 100:
        left, gone = slice(removed + 1, None), slice(removed, removed + 1)
        start = time.perf_counter()
        try:
            head = remove(head, features[left], labels[left], features[gone], labels[gone], generator=draws)
        except GateError:
            break
        seconds, removed = seconds + time.perf_counter() - start, removed + 1
    exact = minimise(features[removed:], signs_of(labels[removed:], len(head.state)), head.strength)
    return {
        "removals_within_budget": removed,
        "seconds_a_removal": seconds / max(removed, 1),
        "distance_to_retraining": float((head.state - exact).norm()),
        "its_bound": head.residual / (head.strength * head.count),
        "noise_in_each_weight": head.spread,
    }


if __name__ == "__main__":
    main()
