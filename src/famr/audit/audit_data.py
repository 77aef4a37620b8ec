"""The images of an audit, drawn once: every model is evaluated on the same ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from famr.data import Images
from famr.data.loaders import order
from famr.data.splits import Splits
from famr.errors import CheckpointError, RequestError
from famr.models import Classifier
from famr.models.labels import require_same_labels
from famr.runs.training_record import ids_digest

RETAINED_IMAGES = 5000
HELD_OUT_IMAGES = 10_000
ATTACK_IMAGES = 2000
"""Members and non-members that the membership attack learns from, and held-out images that probes are evaluated on."""
CONVERSION_IMAGES = 1000
"""Forget images that converted copies of a model are evaluated on."""
CKA_IMAGES = 500
FEWEST_IMAGES = 20
"""Forget images below which no interval means anything."""


@dataclass(frozen=True, eq=False)
class AuditData:
    """What every model is evaluated on.

    Attributes:
        splits: The request's sets, whole.
        retain: Retained training images.
        test: Held-out retained images.
        attack_splits: The request's sets with fewer held-out images, for the attacks that learn.
        seed: Of all draws.
        device: Where the models run.
    """

    splits: Splits
    retain: Images
    test: Images
    attack_splits: Splits
    seed: int
    device: torch.device

    @classmethod
    def draw(cls, splits: Splits, seed: int, device: torch.device) -> AuditData:
        """Check that the whole data is available, and draw.

        Args:
            splits: Of the request.
            seed: Of all draws.
            device: Where the models run.

        Raises:
            RequestError: Without retained or held-out images, or without labels.
        """
        if splits.retain is None or splits.test is None or not splits.forget.labelled:
            raise RequestError("An audit needs the whole data, with labels.", where="splits", fix="Give --data.")
        return cls(
            splits,
            draw_images(splits.retain, RETAINED_IMAGES, seed),
            draw_images(splits.test, HELD_OUT_IMAGES, seed),
            replace(splits, test=draw_images(splits.test, ATTACK_IMAGES, seed)),
            seed,
            device,
        )

    def to_json(self) -> dict[str, Any]:
        """How many images of each set there are, and the digest of their ids: audits of other images can be told."""
        sets = {"forget": self.splits.forget, "retained": self.retain, "held_out": self.test}
        if self.splits.forget_test is not None:
            sets["held_out_forgotten"] = self.splits.forget_test
        return {name: {"count": len(images), "ids_sha256": ids_digest(images.ids)} for name, images in sets.items()}

    @property
    def enough(self) -> bool:
        """Whether there are enough forget images for any verdict."""
        return len(self.splits.forget) >= FEWEST_IMAGES

    def forget_images(self, at_most: int) -> Images:
        """Some of the forget set.

        Args:
            at_most: How many.
        """
        return draw_images(self.splits.forget, at_most, self.seed)

    def test_images(self, at_most: int) -> Images:
        """Some of all held-out retained images.

        Args:
            at_most: How many.
        """
        assert self.splits.test is not None  # checked by `draw`
        return draw_images(self.splits.test, at_most, self.seed)


def draw_images(images: Images, at_most: int, seed: int) -> Images:
    """All images, or a random subset of the allowed size.

    Args:
        images: To draw from.
        at_most: The allowed size.
        seed: Of the draw.
    """
    return images if len(images) <= at_most else images.take(order(len(images), seed)[:at_most])


def require_comparable(models: Mapping[str, Classifier], splits: Splits) -> None:
    """Refuse models of another architecture or label map than the first, or than the images.

    Args:
        models: By name.
        splits: The images.

    Raises:
        CheckpointError: Where two models differ.
        DataError: Where models and images name other classes.
    """
    first_name, first = next(iter(models.items()))
    first_shapes = _shapes(first)
    for name, model in models.items():
        if first.labels is not None and model.labels is not None and model.labels != first.labels:
            raise CheckpointError(
                f"The {name} model names other classes than the {first_name} one.",
                where=f"{model.spec}: {len(model.labels)} classes, {first.spec}: {len(first.labels)}",
                fix="Compare models that were trained on the same classes.",
            )
        if differing := sorted(_shapes(model) ^ first_shapes):
            raise CheckpointError(
                f"The {name} model is of another architecture than the {first_name} one.",
                where=f"{model.spec} ({model.architecture.name}): {differing[0][0]}",
                fix="Audit against models of one architecture, trained alike.",
            )
    require_same_labels(first, splits)


def _shapes(model: Classifier) -> set[tuple[str, tuple[int, ...]]]:
    return {(name, tuple(tensor.shape)) for name, tensor in model.module.state_dict().items()}
