"""What a report measures itself, where the images can be opened: answers on the forget set, and class by class."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from PIL import Image

from famr.audit.class_changes import ClassChange, class_changes, nearness
from famr.data.splits import Splits
from famr.engine.devices import pick_device
from famr.engine.inference import predict_splits
from famr.evaluation.evaluate import compare_predictions
from famr.metrics.forgetting import entropy
from famr.metrics.scores import Scores
from famr.models import Classifier
from famr.models.labels import require_same_labels
from famr.report.content import Thumbnail

MOST_THUMBNAILS = 24


@dataclass(frozen=True)
class Measured:
    """The metrics anew, the entropies behind their mean, and the accuracies behind theirs."""

    scores: Scores
    entropies: Mapping[str, Sequence[float]]
    """Of each model, one value a forget image."""
    changes: Sequence[ClassChange] | None
    """Of each class that stays; None without the original or without held-out images."""
    labels: tuple[str, ...]


def measure(
    original: Classifier | None, unlearned: Classifier, retrained: Classifier | None, splits: Splits, device: str
) -> Measured:
    """Ask up to three models about the sets of a request."""
    models = {"original": original, "unlearned": unlearned, "retrained": retrained}
    place = pick_device(device)
    for model in models.values():
        if model is not None:
            require_same_labels(model, splits)
    said = {name: None if model is None else predict_splits(splits, model, place) for name, model in models.items()}
    before, after = said["original"], said["unlearned"]
    assert after is not None
    changes = None
    if before is not None and before.test is not None and after.test is not None and after.test.labelled:
        forgotten = torch.tensor(splits.forgotten_classes(), dtype=torch.long)
        changes = class_changes(before.test, after.test, nearness(before.forget.logits, forgotten))
    classes = after.forget.logits.shape[-1]
    return Measured(
        compare_predictions(before, after, said["retrained"], splits),
        {name: entropy(found.forget.logits).tolist() for name, found in said.items() if found is not None},
        changes,
        splits.labels or tuple(str(index) for index in range(classes)),
    )


def thumbnails(splits: Splits) -> tuple[Thumbnail, ...]:
    """The first forget images as small PNG files."""
    made = []
    for position, name in enumerate(splits.forget.ids[:MOST_THUMBNAILS]):
        pixels = splits.forget.pixels(position, 3).permute(1, 2, 0).numpy()
        image = Image.fromarray(pixels)
        image.thumbnail((96, 96))
        file = io.BytesIO()
        image.save(file, "PNG")
        made.append(Thumbnail(name, base64.b64encode(file.getvalue()).decode("ascii")))
    return tuple(made)
