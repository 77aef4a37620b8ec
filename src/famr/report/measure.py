"""What a report measures itself, where model and images can be opened: predictions on the forget set and by class."""

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

MAX_THUMBNAILS = 24
THUMBNAIL_PIXELS = 96


@dataclass(frozen=True)
class Measurements:
    """Metrics measured for a report, with the values behind their means.

    Attributes:
        scores: The five metrics of each model.
        entropies: Entropy of the prediction on each forget image in nats, by model.
        changes: Held-out accuracy of each retained class before and after, the largest loss first; None without the
            original or without labelled held-out images.
        labels: Name of each class, by its index.
    """

    scores: Scores
    entropies: Mapping[str, Sequence[float]]
    changes: Sequence[ClassChange] | None
    labels: tuple[str, ...]


def measure(
    original: Classifier | None, unlearned: Classifier, retrained: Classifier | None, splits: Splits, device: str
) -> Measurements:
    """Evaluate up to three models on the splits of a request.

    Args:
        original: The model before unlearning; None where it was not found.
        unlearned: The model of the run.
        retrained: A model trained without the forget set; None where none was given.
        splits: The images of the request.
        device: ``"cpu"``, ``"cuda"`` or ``"auto"``.

    Raises:
        DataError: A model and the data name different classes.
    """
    models = {"original": original, "unlearned": unlearned, "retrained": retrained}
    chosen = pick_device(device)
    for model in models.values():
        if model is not None:
            require_same_labels(model, splits)
    predictions = {
        name: None if model is None else predict_splits(splits, model, chosen) for name, model in models.items()
    }
    before, after = predictions["original"], predictions["unlearned"]
    assert after is not None
    changes = None
    if before is not None and before.test is not None and after.test is not None and after.test.labelled:
        forgotten = torch.tensor(splits.forgotten_classes(), dtype=torch.long)
        changes = class_changes(before.test, after.test, nearness(before.forget.logits, forgotten))
    classes = after.forget.logits.shape[-1]
    return Measurements(
        compare_predictions(before, after, predictions["retrained"], splits),
        {name: entropy(model.forget.logits).tolist() for name, model in predictions.items() if model is not None},
        changes,
        splits.labels or tuple(str(index) for index in range(classes)),
    )


def forget_thumbnails(splits: Splits) -> tuple[Thumbnail, ...]:
    """The first forget images as small PNG files.

    Args:
        splits: The images of the request.

    Returns:
        At most `MAX_THUMBNAILS` images of at most `THUMBNAIL_PIXELS` on a side.
    """
    thumbnails = []
    for index, name in enumerate(splits.forget.ids[:MAX_THUMBNAILS]):
        image = Image.fromarray(splits.forget.pixels(index, 3).permute(1, 2, 0).numpy())  # (height, width, 3)
        image.thumbnail((THUMBNAIL_PIXELS, THUMBNAIL_PIXELS))
        file = io.BytesIO()
        image.save(file, "PNG")
        thumbnails.append(Thumbnail(name, base64.b64encode(file.getvalue()).decode("ascii")))
    return tuple(thumbnails)
