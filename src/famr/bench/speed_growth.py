"""How the cost grows: with the images to forget, and with the data that is retained and never looked at."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from typing import Any

import torch

from famr.bench.speed_loops import run_ours
from famr.bench.speed_subject import forgetting, synthetic
from famr.config import FAMR
from famr.models import Classifier

DECADES = (1, 10, 100)
SETTLED = 24
"""Steps of the shortest run: most of them are captured, where steps are."""
RETAINED = (100, 1_000, 10_000)


def exponent(smaller: tuple[float, float], larger: tuple[float, float]) -> float:
    """p of seconds ∝ countᵖ between two (count, seconds): 1 is linear, 0 no growth.

    >>> exponent((10, 1.0), (100, 10.0)), exponent((10, 2.0), (100, 2.0))
    (1.0, 0.0)
    """
    return math.log(larger[1] / smaller[1]) / math.log(larger[0] / smaller[0])


def growth_with_forget(
    original: Classifier, method: FAMR, seed: int, device: torch.device, repeats: int
) -> dict[str, Any]:
    """Seconds of an epoch, once the loop has settled, over 1, 10 and 100 batches of images to forget.

    Few images get more epochs, so that their steps are captured where steps are: cost is to be compared in one way.
    """
    methods = [replace(method, epochs=max(method.settled_epochs, SETTLED // scale)) for scale in DECADES]
    splits = [forgetting(synthetic(original, scale * method.batch_size, 100, seed)) for scale in DECADES]
    seconds: list[list[float]] = [[] for _ in splits]
    for _ in range(repeats):
        for found, each, long in zip(seconds, splits, methods, strict=True):
            found.append(run_ours(original, each, long, seed, device).steady)
    points = [
        {"images": len(each.forget), "seconds": statistics.median(found), "calls": found, "epochs": long.epochs}
        for each, found, long in zip(splits, seconds, methods, strict=True)
    ]
    return {"points": points, "batch": method.batch_size, **_exponents(points)}


def growth_with_data(
    original: Classifier, images: int, method: FAMR, seed: int, device: torch.device, repeats: int
) -> dict[str, Any]:
    """Seconds of the steps, and of the whole call, where more and more images are retained."""
    splits = [forgetting(synthetic(original, images, retained, seed)) for retained in RETAINED]
    runs: list[list[tuple[float, float, int]]] = [[] for _ in splits]
    run_ours(original, splits[0], method, seed, device)  # so that the first of them is not the one that warms up
    for _ in range(repeats):
        for found, each in zip(runs, splits, strict=True):
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(device)
            run = run_ours(original, each, method, seed, device)
            peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
            found.append((run.steps, run.whole, peak))
    points = [
        {
            "images": len(each.retain or ()),
            "seconds": statistics.median(steps for steps, _, _ in found),
            "whole_call": statistics.median(whole for _, whole, _ in found),
            "peak_memory": max(peak for _, _, peak in found) or None,
        }
        for each, found in zip(splits, runs, strict=True)
    ]
    return {"points": points, "forget_images": images, "epochs": method.epochs, **_exponents(points)}


def _exponents(points: list[dict[str, Any]]) -> dict[str, float]:
    """Over all that was measured, and over its last decade, where what is constant weighs least."""
    at = [(point["images"], point["seconds"]) for point in points]
    return {"exponent": exponent(at[0], at[-1]), "exponent_of_last": exponent(at[-2], at[-1])}
