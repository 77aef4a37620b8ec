"""Shadow models for `famr audit`: the run's own training and forgetting, repeated from its records."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from famr.audit.shadow_logits import ShadowLogits, train_shadow_logits
from famr.audit.shadows import Method, Setting, ShadowDone
from famr.cli.opening import OpenedRun, open_style_target
from famr.cli.printing import say
from famr.config import FAMR
from famr.data import Images
from famr.data.augmentation import Augmentation
from famr.errors import CheckpointError, RequestError
from famr.models import Classifier, new_model
from famr.runs.training_record import TrainingRecord
from famr.storage.digests import COMPLETE
from famr.training import Training
from famr.unlearn.forget import forget
from famr.unlearn.history import Monitor

SCRATCH = "scratch"
"""Training starts from random weights."""


@dataclass(frozen=True)
class ShadowTask:
    """Which shadow models to train.

    Attributes:
        count: How many in all.
        start: What their training starts from: `SCRATCH`, or a checkpoint; None: see `original_training`.
        cache: Folder that keeps them.
        original: Where the original is now; None: where the record says.
        seed: Of the first.
        device: Where to compute.
        quiet: Print no notes.
    """

    count: int
    start: str | None
    cache: Path
    original: str | None
    seed: int
    device: str
    quiet: bool = False


def train_shadow_models(opened: OpenedRun, task: ShadowTask) -> ShadowLogits:
    """Train the shadow models that the cache does not have, and take the logits of all.

    Args:
        opened: The run.
        task: Which shadow models.

    Raises:
        CheckpointError: The original is missing, or the record of its training.
        RequestError: The cache lies inside a finished run, the start is open, or the method cannot be repeated.
    """
    if opened.original is None:
        raise CheckpointError("Shadow models are trained as the original was, and it is not there.", fix="--original")
    folder = task.cache.resolve()
    if sealed := next((parent for parent in (folder, *folder.parents) if (parent / COMPLETE).is_file()), None):
        raise RequestError("The cache lies inside a finished run.", where=str(sealed), fix="Name a folder outside.")
    setting = original_training(opened, Path(task.original or opened.record["original"]["model"]), task.start)

    def on_shadow(done: ShadowDone) -> None:
        if not task.quiet:
            how = "from the cache" if done.cached else f"trained in {done.seconds:.1f} s"
            say(f"shadow model {done.number + 1}: {how}")

    splits = opened.splits
    return train_shadow_logits(
        Setting(setting.start, splits.forget, splits.retain, training=setting.training, seed=task.seed),
        _method(opened, task.device),
        task.count,
        task.cache,
        device=task.device,
        on_shadow=on_shadow,
    )


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
            fix="Shadow models take an original that `famr train` wrote; without --shadows the audit needs no record.",
        ) from error


@dataclass(frozen=True, eq=False)
class OriginalTraining:
    """How the original was trained, so that others can be trained alike.

    Attributes:
        training: The settings.
        start: The model that each training starts from, by its seed.
    """

    training: Training
    start: Callable[[int], Classifier]


def original_training(opened: OpenedRun, original: Path, start: str | None) -> OriginalTraining:
    """How the original of a run was trained.

    Args:
        opened: The run.
        original: The folder of the original.
        start: As in `ShadowTask`; None: found out, where it was random weights and the record has their digest.

    Raises:
        CheckpointError: The original is missing, or has no readable record.
        RequestError: Its start cannot be found out.
    """
    if opened.original is None:
        raise CheckpointError("Models are trained as the original was, and it is not there.", fix="--original")
    return OriginalTraining(recorded_training(original), _start(opened.original, original, start))


def _start(original: Classifier, folder: Path, start: str | None) -> Callable[[int], Classifier]:
    """The model that each training starts from, by its seed."""
    labels = original.labels or ()

    def random_weights(seed: int) -> Classifier:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return replace(original, module=original.architecture.build(len(labels)))

    if start is None:
        record = TrainingRecord.read(folder)
        if record is not None and record.start_sha256 == random_weights(record.seed).digest():
            return random_weights
        raise RequestError(
            "The record does not say what the original's training started from.",
            where="--shadow-start",
            fix=f"--shadow-start {SCRATCH} for random weights, or the checkpoint that was fine-tuned.",
        )
    return random_weights if start == SCRATCH else lambda seed: new_model(start, labels, seed=seed)


def _method(opened: OpenedRun, device: str) -> Method:
    """The run's method with its resolved settings, for the same request."""
    name = opened.record["method"]["name"]
    if name != "FAMR":
        raise RequestError(
            f"Shadow models repeat the run's method, and {name!r} cannot be repeated from a record.",
            where="run.json",
            fix="In Python: train_shadow_logits(…) with a Method of your own, and audit(…, shadows=…).",
        )
    values = {name: value for name, value in opened.record["method"].items() if name != "name"}
    method, style_target = FAMR.from_json(values), open_style_target(opened.style_target)

    def unlearn(model: Classifier, _forget: Images, _retain: Images | None, seed: int) -> Classifier:
        result = forget(
            model,
            opened.seen,
            method,
            style_target=style_target,
            seed=seed,
            device=None if device == "auto" else device,
            monitor=Monitor(track_retain=False),
        )
        return result.model

    rule = opened.record.get("calibration")
    calibration = {} if rule is None else {"calibration": rule}  # shadow models of earlier runs keep their names
    facts = {"famr": values, "request": opened.request.to_json(), **calibration}
    return Method(json.dumps(facts, sort_keys=True), unlearn)
