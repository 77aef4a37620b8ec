"""Can the style still be read? A linear probe on the Gram features of a layer, with style labels from a data column.

Style is what Gram matrices hold [FAMR, Eq. (3)], so it is looked for there. A perfect result is that of a model that
never saw the style: features that serve the retained styles distinguish them from a new one, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from famr.audit.probes import FewShot, few_of_each, few_shot_hits, probe_predictions
from famr.data import Images
from famr.data.loaders import EVALUATION_BATCH, image_batches, order
from famr.data.splits import Splits
from famr.engine.devices import pick_device
from famr.engine.inference import on_device
from famr.errors import DataError, RequestError
from famr.losses.objective import gram_matrix
from famr.models import Classifier
from famr.models.activations import capture_layer
from famr.models.classifier import eval_mode

FEW_SHOT_STYLES = FewShot(shots=20, draws=5)
"""Labelled images of each style that the probe learns from."""
ENTRIES = 4096
"""The most entries of a Gram matrix in a feature vector; of a larger one, as many drawn with a fixed seed."""


@dataclass(frozen=True)
class StyleLayer:
    """Where a style is read from.

    Attributes:
        name: Of the layer, as in `named_modules()`.
        channels_last: Whether its output is (batch, height, width, channels).
    """

    name: str
    channels_last: bool = False


@dataclass(frozen=True, eq=False)
class StyleHits:
    """How often the probe names the style of each held-out image, as a share over draws.

    Attributes:
        layer: The layer whose features were read.
        forget: Of images of the forgotten style, (images,).
        retain: Of images of the retained styles, (images',).
    """

    layer: str
    forget: Tensor
    retain: Tensor

    @property
    def forget_accuracy(self) -> float:
        """How often the forgotten style is recognised."""
        return float(self.forget.mean())

    @property
    def retain_accuracy(self) -> float:
        """How often the retained styles are."""
        return float(self.retain.mean())

    @property
    def balanced_accuracy(self) -> float:
        """The mean of both; a probe that always names one style reaches no more than ½."""
        return (self.forget_accuracy + self.retain_accuracy) / 2

    def balanced(self) -> Tensor:
        """One value for each image, (images + images',), whose mean is the balanced accuracy.

        >>> hits = StyleHits("layer", torch.tensor([1.0]), torch.tensor([1.0, 0.0, 0.0]))
        >>> round(float(hits.balanced().mean()), 6), round(hits.balanced_accuracy, 6)
        (0.666667, 0.666667)
        """
        total = len(self.forget) + len(self.retain)
        return torch.cat([hits.double() * total / (2 * len(hits)) for hits in (self.forget, self.retain)])

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "layer": self.layer,
            "forget_accuracy": self.forget_accuracy,
            "retain_accuracy": self.retain_accuracy,
            "balanced_accuracy": self.balanced_accuracy,
            "counts": {"forget": len(self.forget), "retain": len(self.retain)},
        }


def probe_style(
    model: Classifier,
    splits: Splits,
    layer: StyleLayer,
    *,
    few_shot: FewShot = FEW_SHOT_STYLES,
    device: str | None = None,
) -> StyleHits:
    """Read the style off one model; call it for the original and one that never saw the style as well.

    The probe learns from forget and retained training images and is evaluated on held-out ones. Which these are
    depends on the seed alone.

    Args:
        model: Is not changed.
        splits: Of a style request, with retained and held-out images.
        layer: Where to read.
        few_shot: How many labelled images of each style the probe has.
        device: None: the best there is.

    Raises:
        RequestError: Where no style was forgotten, or there is no such layer.
        DataError: Without retained or held-out images.
    """
    if splits.request.style is None:
        raise RequestError("No style was forgotten.", where=splits.request.describe(), fix="Use class recovery.")
    if splits.retain is None or splits.test is None or splits.forget_test is None:
        raise DataError(
            "Reading a style takes retained images, and held-out images with and without the style.",
            where=splits.request.describe(),
            fix="Give the whole data.",
        )
    torch_device = pick_device(device or "auto")
    sets = (splits.forget, splits.retain, splits.forget_test, splits.test)
    forget, retain, *truth = _style_labels(sets, splits.request.style[0])
    drawn = [few_of_each(labels, few_shot.pool, few_shot.seed) for labels in (forget, retain)]
    learned = [images.take(indices) for images, indices in zip(sets[:2], drawn, strict=True)]
    labels = torch.cat([forget[drawn[0]], retain[drawn[1]]])
    known, queries = (
        torch.cat([gram_features(model, images, layer, torch_device) for images in part])
        for part in (learned, sets[2:])
    )
    hits = few_shot_hits(probe_predictions, known, labels, queries, torch.cat(truth), few_shot)
    return StyleHits(layer.name, *hits.tensor_split([len(splits.forget_test)]))


def _style_labels(sets: tuple[Images, ...], column: str) -> list[Tensor]:
    """Indices of the styles of each set's images."""
    names = [images.column(column) for images in sets]
    index = {style: number for number, style in enumerate(sorted({style for each in names for style in each}))}
    return [torch.tensor([index[style] for style in each]) for each in names]


@torch.no_grad()
def gram_features(model: Classifier, images: Images, layer: StyleLayer, device: torch.device) -> Tensor:
    """The upper triangle of each image's Gram matrix at a layer [FAMR, Eq. (3)].

    Args:
        model: Is not changed.
        images: To read.
        layer: Where.
        device: Where the network runs.

    Returns:
        (images, entries).
    """
    rows = []
    batches = image_batches(images, model.require_preprocessing(), EVALUATION_BATCH, device)
    with (
        on_device(model.module, device),
        eval_mode(model.module),
        capture_layer(model.module, layer.name, layer.channels_last) as tap,
    ):
        for batch in batches(None):
            model.module(batch.images)
            rows.append(upper_triangle(gram_matrix(tap.features(len(batch.images)))).cpu())
    return torch.cat(rows)


def upper_triangle(gram: Tensor) -> Tensor:
    """The entries on and above the diagonal, row by row; a fixed draw of `ENTRIES` where there are more.

    Args:
        gram: (images, channels, channels).

    >>> upper_triangle(torch.tensor([[[1.0, 2.0], [2.0, 3.0]]]))
    tensor([[1., 2., 3.]])
    """
    row, column = torch.triu_indices(gram.shape[-1], gram.shape[-1], device=gram.device)
    if len(row) > ENTRIES:
        drawn = order(len(row), 0)[:ENTRIES].sort().values.to(gram.device)
        row, column = row[drawn], column[drawn]
    return gram[:, row, column]
