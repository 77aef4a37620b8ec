"""A certified head on digits: how many removals its budget allows, what they cost, and how near retraining they land.

    python -m benchmarks.certified_head --output benchmarks/results/certified_head-digits.json

The backbone is a small ViT trained on one half of the images; the head stands for the other half, so that the
assumption about the backbone holds. Times are of single removals and of training the head anew, in one run.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

import famr
from benchmarks.cells import log
from famr.certificates.convex_head import CertifiedHead, remove, train_certified_head
from famr.certificates.logistic import minimise, signs_of
from famr.data.augmentation import Augmentation
from famr.engine.features import head_features
from famr.errors import GateError
from famr.runs.folder import environment

ARCHITECTURE = {"img_size": 16, "patch_size": 4, "embed_dim": 64, "depth": 2, "num_heads": 2}
SETTINGS = [(1e-2, 1.0), (1e-2, 0.1), (1e-3, 1.0), (1e-3, 0.1)]
EPSILON, DELTA = 1.0, 1e-5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    place = torch.device("cpu")
    data = famr.open_data("digits")
    assert data.test is not None
    half = torch.arange(len(data.train)) % 2 == 0
    start = famr.new_model("timm:vit_tiny_patch16_224", data.labels, from_scratch=True, arguments=ARCHITECTURE)
    training = famr.Training(
        epochs=30, batch_size=32, learning_rate=3e-3, augmentation=Augmentation(smallest_area=0.9, mirror=False)
    )
    backbone = famr.fit(start, data.train.where(half), training, device="cpu").model
    stands_for = data.train.where(~half)
    features, labels = head_features(backbone, stands_for, place), stands_for.targets
    unseen = head_features(backbone, data.test, place)
    cells = []
    for strength, sigma in SETTINGS:
        noise = {"strength": strength, "sigma": sigma, "epsilon": EPSILON, "delta": DELTA}
        begin = time.perf_counter()
        head = train_certified_head(features, labels, 10, **noise, generator=torch.Generator().manual_seed(0))
        trained = time.perf_counter() - begin
        cell = {**noise, **_removals(head, features, labels), "seconds_of_training": trained}
        for name, weights in (("released", head.released), ("without_noise", head.state)):
            cell[f"accuracy_{name}"] = float(((unseen @ weights.mT).argmax(dim=1) == data.test.targets).double().mean())
        cells.append(cell)
        log(str(cell))
    facts = {"benchmark": "certified_head-digits", "images": len(labels), "classes": 10, "width": features.shape[1]}
    content = {**facts, "environment": environment("cpu"), "cells": cells}
    arguments.output.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _removals(head: CertifiedHead, features: torch.Tensor, labels: torch.Tensor) -> dict[str, Any]:
    """Remove image after image until the budget refuses."""
    seconds, done, draws = 0.0, 0, torch.Generator().manual_seed(1)
    while done < len(labels) - 100:
        left, gone = slice(done + 1, None), slice(done, done + 1)
        begin = time.perf_counter()
        try:
            head = remove(head, features[left], labels[left], features[gone], labels[gone], generator=draws)
        except GateError:
            break
        seconds, done = seconds + time.perf_counter() - begin, done + 1
    exact = minimise(features[done:], signs_of(labels[done:], len(head.state)), head.strength)
    return {
        "removals_within_budget": done,
        "seconds_a_removal": seconds / max(done, 1),
        "distance_to_retraining": float((head.state - exact).norm()),
        "its_bound": head.residual / (head.strength * head.count),
        "noise_in_each_weight": head.spread,
    }


if __name__ == "__main__":
    main()
