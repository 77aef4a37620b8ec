"""`export`: write the program, read it back, hold it against the model, and put what was found beside it."""

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
from famr.export.slots import kept_slots, without_slots
from famr.metrics.predictions import Predictions
from famr.metrics.scores import ModelScores, score
from famr.models import Classifier
from famr.models.onnx import INPUT, OUTPUT
from famr.runs.folder import atomic_folder, check_output, environment, write_json
from famr.storage.digests import file_digest

CPU = torch.device("cpu")
RECORD = "export.json"
TOLERANCE = 1e-3
"""How far a logit of the export may be from the model's, relative to the largest."""
NO_SLOT = "the export has no slot for what was forgotten, so it cannot answer it"


@dataclass(frozen=True)
class Comparison:
    """The model and its export, asked about the same images."""

    model: ModelScores
    export: ModelScores
    largest_difference: float
    """Between a logit of the export and the model's, over all images asked about."""


@dataclass(frozen=True)
class Export:
    """What was written."""

    folder: Path
    form: str
    labels: tuple[str, ...] | None
    removed: tuple[str, ...]
    measured: Comparison | None
    not_available: dict[str, str]
    """Why a figure is missing, by its name."""

    def to_json(self) -> dict[str, Any]:
        """What the export's own record says about it."""
        return {
            "format": self.form,
            "file": FILES[self.form],
            "labels": None if self.labels is None else list(self.labels),
            "removed_classes": list(self.removed),
            "measured": None if self.measured is None else asdict(self.measured),
            "not_available": self.not_available,
        }


def export(
    model: Classifier,
    form: str,
    target: Path,
    *,
    splits: Splits | None = None,
    why_not: str = "no images were given",
    without: Sequence[str] = (),
    overwrite: bool = False,
) -> Export:
    """Write `model` in a format, without the slots of some classes; all of it or nothing.

    `splits` are the images to measure it on, `why_not` says why there are none. An export that does not answer as the
    model does is a GateError, and is not kept.
    """
    require_format(form)
    check_output(target, overwrite, [model.spec])
    model = replace(model, module=model.copy().module.cpu())
    shown = without_slots(model, without) if without else model
    with atomic_folder(target, overwrite=overwrite) as folder:
        write_program(shown, form, folder / FILES[form])
        written = replace(shown, module=read_program(form, folder / FILES[form]))
        measured = None if splits is None else compare_with(model, written, splits, without)
        missing = {"measured": why_not} if splits is None else {}
        if measured is not None and without and measured.export.forget_accuracy is None:
            missing["export.forget_accuracy"] = NO_SLOT
        made = Export(target, form, shown.labels, tuple(without), measured, missing)
        prepared = shown.require_preprocessing()
        write_json(
            folder / RECORD,
            {
                **made.to_json(),
                "sha256": file_digest(folder / FILES[form]),
                "source_weights_sha256": model.digest(),
                "input": {"name": INPUT, "shape": ["any", prepared.channels, *prepared.crop], "type": "float32"},
                "output": {"name": OUTPUT, "shape": ["any", None if shown.labels is None else len(shown.labels)]},
                "preprocessing": prepared.to_json(),
                "environment": environment("cpu"),
            },
        )
    return made


def compare_with(model: Classifier, written: Classifier, splits: Splits, without: Sequence[str]) -> Comparison:
    """Both models' metrics on the sets of a request, and how far apart their logits are."""
    count = len(model.labels or ())
    kept = kept_slots(model.labels or (), without) if without else list(range(count))
    sets: tuple[Images | None, ...] = (splits.forget, splits.test, splits.forget_test)
    ours = [None if images is None else _said(model, images) for images in sets]
    if without:
        sets = tuple(images and images.with_targets(_places(count, kept)) for images in sets)
    theirs = [None if images is None else _said(written, images) for images in sets]
    furthest = 0.0
    for before, after in zip(ours, theirs, strict=True):
        if before is None or after is None:
            continue
        expected = before.logits[:, kept] if without else before.logits
        difference = float((expected - after.logits).abs().max())
        if not difference <= TOLERANCE * (1 + float(expected.abs().max())):  # NaN fails, too
            raise GateError(
                f"The export does not answer as the model does: a logit is off by {difference:.3g}.",
                where=f"{written.architecture.library}:{written.architecture.name}",
                fix="Use the other format; nothing was written.",
            )
        furthest = max(furthest, difference)
    return Comparison(_scores(*ours), _scores(*theirs), furthest)


def _scores(forget: Predictions | None, test: Predictions | None, forget_test: Predictions | None) -> ModelScores:
    assert forget is not None  # a forget set is never empty
    return score(forget, None, test, forget_test)


def _said(model: Classifier, images: Images) -> Predictions:
    return predict_batches(
        model, image_batches(images, model.require_preprocessing(), EVALUATION_BATCH, CPU)(None), CPU
    )


def _places(count: int, kept: Sequence[int]) -> list[int]:
    """Where each class is in a head without some of them.

    >>> _places(4, [0, 2, 3])
    [0, -1, 1, 2]
    """
    return [kept.index(place) if place in kept else UNLABELLED for place in range(count)]
