"""Can the style still be read? A linear probe on the Gram features of a layer, style labels from a column of the data.

Style is what Gram matrices hold [FAMR, Eq. (3)], so it is looked for there. Good is what a model that never saw the
style gets: features that serve the retained styles tell them from a new one, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from famr.audit.probes import few_of_each, probe_answers
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

SHOTS = 20
"""Labelled images of each style that the probe learns from."""

DRAWS = 5
"""Times that these few images are drawn anew."""

ENTRIES = 4096
"""The most entries of a Gram matrix the probe looks at; of more, as many drawn with a fixed seed."""


@dataclass(frozen=True, eq=False)
class StyleRead:
    """How often the probe named the style of each held-out image, as a share over the draws."""

    layer: str
    forget: Tensor
    """Images of the forgotten style."""
    retain: Tensor
    """Images of the other styles."""

    @property
    def forget_accuracy(self) -> float:
        """How often the forgotten style is recognised."""
        return float(self.forget.mean())

    @property
    def retain_accuracy(self) -> float:
        """How often the other styles are."""
        return float(self.retain.mean())

    @property
    def balanced_accuracy(self) -> float:
        """The mean of both; a probe that always names one style gets no more than ½."""
        return (self.forget_accuracy + self.retain_accuracy) / 2

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "layer": self.layer,
            "forget_accuracy": self.forget_accuracy,
            "retain_accuracy": self.retain_accuracy,
            "balanced_accuracy": self.balanced_accuracy,
            "counts": {"forget": len(self.forget), "retain": len(self.retain)},
        }


def style_read(
    model: Classifier,
    splits: Splits,
    layer: str,
    *,
    shots: int = SHOTS,
    draws: int = DRAWS,
    seed: int = 0,
    channels_last: bool = False,
    device: str | None = None,
) -> StyleRead:
    """Read the style off one model; call it for the original and one that never saw the style as well.

    The probe learns from forget and retained training images and is asked about held-out ones. Which these are depends
    on the seed alone.
    """
    if splits.request.style is None:
        raise RequestError("No style was forgotten.", where=splits.request.describe(), fix="Use the depth audit.")
    if splits.retain is None or splits.test is None or splits.forget_test is None:
        raise DataError(
            "Reading a style takes retained images, and held-out images with and without the style.",
            where=splits.request.describe(),
            fix="Give the whole data.",
        )
    column, _style = splits.request.style
    sets = (splits.forget, splits.retain, splits.forget_test, splits.test)
    names = [images.column(column) for images in sets]
    styles = sorted({name for column_of_set in names for name in column_of_set})
    number = {name: index for index, name in enumerate(styles)}
    forget, retain, forget_asked, retain_asked = (torch.tensor([number[name] for name in found]) for found in names)

    place = pick_device(device or "auto")
    some = [few_of_each(labels, shots * draws, seed) for labels in (forget, retain)]
    known = torch.cat(
        [
            gram_features(model, images.take(few), layer, place, channels_last=channels_last)
            for images, few in zip(sets[:2], some, strict=True)
        ]
    )
    labels = torch.cat([forget[some[0]], retain[some[1]]])
    asked = torch.cat([gram_features(model, images, layer, place, channels_last=channels_last) for images in sets[2:]])
    truth = torch.cat([forget_asked, retain_asked])
    rights = []
    for draw in range(draws):
        few = few_of_each(labels, shots, seed + draw)
        rights.append((probe_answers(known[few], labels[few], asked) == truth).float())
    right = torch.stack(rights).mean(dim=0)
    return StyleRead(layer, right[: len(forget_asked)], right[len(forget_asked) :])


@torch.no_grad()
def gram_features(
    model: Classifier, images: Images, layer: str, device: torch.device, *, channels_last: bool = False
) -> Tensor:
    """The upper half of each image's Gram matrix at a layer, as one row an image."""
    rows = []
    batches = image_batches(images, model.require_preprocessing(), EVALUATION_BATCH, device)
    with (
        on_device(model.module, device),
        eval_mode(model.module),
        capture_layer(model.module, layer, channels_last) as tap,
    ):
        for batch in batches(None):
            model.module(batch.images)
            rows.append(upper_half(gram_matrix(tap.features(len(batch.images)))).cpu())
    return torch.cat(rows)


def upper_half(gram: Tensor) -> Tensor:
    """The entries on and above the diagonal, row by row; a fixed draw of `ENTRIES` where there are more.

    >>> upper_half(torch.tensor([[[1.0, 2.0], [2.0, 3.0]]]))
    tensor([[1., 2., 3.]])
    """
    row, column = torch.triu_indices(gram.shape[-1], gram.shape[-1], device=gram.device)
    if len(row) > ENTRIES:
        drawn = order(len(row), 0)[:ENTRIES].sort().values.to(gram.device)
        row, column = row[drawn], column[drawn]
    return gram[:, row, column]
