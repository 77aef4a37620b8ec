"""How a model was trained, from the record in its folder, so that others can be trained alike."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from famr.data.augmentation import Augmentation
from famr.errors import CheckpointError, FamrError, RequestError
from famr.models import Classifier, new_model
from famr.runs.training_record import TrainingRecord
from famr.training.supervised import Training

SCRATCH = "scratch"
"""Training starts from random weights."""


@dataclass(frozen=True, eq=False)
class OriginalTraining:
    """How an original was trained.

    Attributes:
        training: The settings.
        seed: Of the start and of the training.
        start: The model that a training starts from, by its seed.
    """

    training: Training
    seed: int
    start: Callable[[int], Classifier]


def recorded_training(original: Path) -> Training:
    """The settings of the training that a run folder records.

    Args:
        original: The folder that `famr train` wrote.

    Raises:
        CheckpointError: It has no readable record.
    """
    try:
        settings = json.loads((original / "training/run.json").read_text(encoding="utf-8"))["training"]
        augmentation = None if settings["augmentation"] is None else Augmentation(**settings["augmentation"])
        return Training(**{**settings, "augmentation": augmentation})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            "There is no readable record of how the original was trained.",
            where=str(original / "training/run.json"),
            fix="Use an original that `famr train` wrote; or leave out what trains further models like it.",
        ) from error


def original_training(original: Classifier, folder: Path, start: str | None = None) -> OriginalTraining:
    """How an original was trained.

    Args:
        original: The model.
        folder: Where it was loaded from.
        start: `SCRATCH`, or the checkpoint that was fine-tuned; None: as recorded, or random weights where these give
            the recorded digest.

    Raises:
        CheckpointError: The folder has no readable record.
        RequestError: The start cannot be found.
    """
    training, record = recorded_training(folder), TrainingRecord.read(folder)
    seed = 0 if record is None else record.seed
    labels = original.labels or ()
    if start == SCRATCH:
        return OriginalTraining(training, seed, lambda drawn: _random_weights(original, drawn))
    if start is not None:
        return OriginalTraining(training, seed, lambda drawn: new_model(start, labels, seed=drawn))
    if record is not None and record.start_sha256 is not None:
        if _random_weights(original, seed).digest() == record.start_sha256:
            return OriginalTraining(training, seed, lambda drawn: _random_weights(original, drawn))
        if record.start is not None and _has_digest(record.start, original, record):
            named = record.start
            return OriginalTraining(training, seed, lambda drawn: _named(named, original, drawn))
    raise RequestError(
        "The record does not say what the original's training started from, or it is no longer there.",
        where="--shadow-start",
        fix=f"--shadow-start {SCRATCH} for random weights, or the checkpoint that was fine-tuned.",
    )


def _random_weights(original: Classifier, seed: int) -> Classifier:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return replace(original, module=original.architecture.build(len(original.labels or ())))


def _named(start: dict[str, Any], original: Classifier, seed: int) -> Classifier:
    return new_model(
        start["model"],
        original.labels or (),
        weights=start.get("weights"),
        arguments=start.get("arguments"),
        from_scratch=bool(start.get("from_scratch")),
        seed=seed,
    )


def _has_digest(start: dict[str, Any], original: Classifier, record: TrainingRecord) -> bool:
    """Whether a named start can still be loaded, with the weights that it had."""
    try:
        return _named(start, original, record.seed).digest() == record.start_sha256
    except (FamrError, OSError):
        return False
