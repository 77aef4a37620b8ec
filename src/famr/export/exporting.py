"""Export a model: write the program, read it back, compare it with the model, and record the figures beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from famr.data import Images
from famr.data.images import UNLABELLED
from famr.data.loaders import EVALUATION_BATCH, image_batches
from famr.data.splits import Splits
from famr.engine.inference import predict_batches
from famr.errors import GateError
from famr.export.programs import FILES, read_program, require_format, write_program
from famr.export.slots import remaining_slots, without_slots
from famr.metrics.predictions import Predictions
from famr.metrics.scores import ModelScores, score
from famr.models import Classifier
from famr.models.onnx import INPUT, OUTPUT
from famr.runs.folder import atomic_folder, check_output, environment, write_json
from famr.storage.digests import file_digest

CPU = torch.device("cpu")
RECORD = "export.json"
LOGIT_TOLERANCE = 1e-3
"""How far a logit of the export may be from the model's, relative to the largest."""
NO_SLOT = "the export has no slot for what was forgotten, so it cannot predict it"


@dataclass(frozen=True)
class Comparison:
    """The model and its export on the same images.

    Attributes:
        model: Metrics of the model.
        export: Metrics of the export.
        largest_difference: Largest absolute difference between a logit of the export and the model's.
    """

    model: ModelScores
    export: ModelScores
    largest_difference: float


@dataclass(frozen=True)
class Export:
    """A written export.

    Attributes:
        folder: Its folder.
        file_format: `onnx` or `torch-export`.
        labels: Class names by index; None where the model has none.
        removed: Names of the classes that were removed from the head.
        measured: Model and export on the same images; None where there were no images.
        not_available: Why a figure is missing, by its name.
    """

    folder: Path
    file_format: str
    labels: tuple[str, ...] | None
    removed: tuple[str, ...]
    measured: Comparison | None
    not_available: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        """As plain values, for the record in the folder."""
        return {
            "format": self.file_format,
            "file": FILES[self.file_format],
            "labels": None if self.labels is None else list(self.labels),
            "removed_classes": list(self.removed),
            "measured": None if self.measured is None else asdict(self.measured),
            "not_available": self.not_available,
        }


def export_model(
    model: Classifier,
    file_format: str,
    target: Path,
    *,
    splits: Splits | None = None,
    unmeasured_because: str = "no images were given",
    without: Sequence[str] = (),
    overwrite: bool = False,
) -> Export:
    """Write a model in a format, on request without the slots of some classes; all of it or nothing.

    Args:
        model: The model; it stays as it is.
        file_format: `onnx` or `torch-export`.
        target: The folder to write.
        splits: Images to compare model and export on; None leaves them uncompared.
        unmeasured_because: Why there are no images, for the record.
        without: Names of classes to remove from the head.
        overwrite: Whether a folder that famr wrote may be replaced.

    Raises:
        RequestError: The format is unknown or cannot be written, a class is unknown, or the folder exists.
        CheckpointError: The network cannot be traced, or not without these classes.
        GateError: The export computes other logits than the model.
        StorageError: The folder cannot be written.
    """
    require_format(file_format)
    check_output(target, overwrite, [model.spec])
    model = replace(model, module=model.copy().module.cpu())
    reduced = without_slots(model, without) if without else model
    with atomic_folder(target, overwrite=overwrite) as folder:
        file = folder / FILES[file_format]
        write_program(reduced, file_format, file)
        exported = replace(reduced, module=read_program(file_format, file))
        measured = None if splits is None else compare_export(model, exported, splits, without)
        missing = {"measured": unmeasured_because} if splits is None else {}
        if measured is not None and without and measured.export.forget_accuracy is None:
            missing["export.forget_accuracy"] = NO_SLOT
        written = Export(target, file_format, reduced.labels, tuple(without), measured, missing)
        prepared = reduced.require_preprocessing()
        write_json(
            folder / RECORD,
            {
                **written.to_json(),
                "sha256": file_digest(file),
                "source_weights_sha256": model.digest(),
                "input": {"name": INPUT, "shape": ["any", prepared.channels, *prepared.crop], "type": "float32"},
                "output": {"name": OUTPUT, "shape": ["any", None if reduced.labels is None else len(reduced.labels)]},
                "preprocessing": prepared.to_json(),
                "environment": environment("cpu"),
            },
        )
    return written


def compare_export(model: Classifier, exported: Classifier, splits: Splits, without: Sequence[str]) -> Comparison:
    """Metrics of a model and its export on the sets of a request, and the largest difference of their logits.

    Args:
        model: The model.
        exported: Its export.
        splits: The sets; forget, test and forget-test images are used.
        without: Names of the classes that the export lacks.

    Raises:
        GateError: A logit differs by more than LOGIT_TOLERANCE, or is not a number.
    """
    classes = len(model.labels or ())
    remaining = remaining_slots(model.labels or (), without) if without else list(range(classes))
    sets: tuple[Images | None, ...] = (splits.forget, splits.test, splits.forget_test)
    of_model = [None if images is None else _predict(model, images) for images in sets]
    if without:
        sets = tuple(images and images.with_targets(_new_targets(classes, remaining)) for images in sets)
    of_export = [None if images is None else _predict(exported, images) for images in sets]
    largest = 0.0
    for expected, actual in zip(of_model, of_export, strict=True):
        if expected is None or actual is None:
            continue
        logits = expected.logits[:, remaining] if without else expected.logits
        difference = float((logits - actual.logits).abs().max())
        if not difference <= LOGIT_TOLERANCE * (1 + float(logits.abs().max())):  # NaN fails, too
            raise GateError(
                f"The export computes other logits than the model: one differs by {difference:.3g}.",
                where=f"{exported.architecture.library}:{exported.architecture.name}",
                fix="Use the other format; nothing was written.",
            )
        largest = max(largest, difference)
    return Comparison(_scores(*of_model), _scores(*of_export), largest)


def _scores(forget: Predictions | None, test: Predictions | None, forget_test: Predictions | None) -> ModelScores:
    assert forget is not None  # a forget set is never empty
    return score(forget, None, test, forget_test)


def _predict(model: Classifier, images: Images) -> Predictions:
    batches = image_batches(images, model.require_preprocessing(), EVALUATION_BATCH, CPU)
    return predict_batches(model, batches(None), CPU)


def _new_targets(classes: int, remaining: Sequence[int]) -> list[int]:
    """The index of each class in a head with only the remaining ones.

    >>> _new_targets(4, [0, 2, 3])
    [0, -1, 1, 2]
    """
    return [remaining.index(index) if index in remaining else UNLABELLED for index in range(classes)]
