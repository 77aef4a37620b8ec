"""Which held-out images a run may see, and which are scored: never the same ones.

A quarter of the held-out images, by a hash of their ids, sets temperatures and ranks of targets; metrics, audits and
reports use the rest. The hash makes it the same quarter in every run, in any order, whatever the seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Any, NamedTuple

import torch
from torch import Tensor

from famr.data.images import Images
from famr.data.splits import Splits
from famr.errors import CheckpointError, DataError

RULE = "sha256-id-quarter"
"""As run.json records it: the first 8 bytes of SHA-256 of the id, a big-endian number, modulo 4 is 0."""
NONE_SEEN = "none"
"""The record of a run that saw no held-out image; all of them can be scored."""
FEWEST = 20
"""Images, at least, on either side of the split."""


class CalibrationSplit(NamedTuple):
    """The sets of a request for a run, and those on which it is scored.

    Attributes:
        for_forgetting: For `famr.forget`: `test` holds the calibration images, and there is no `forget_test`.
        for_scoring: For metrics and audits: everything but the calibration images.
    """

    for_forgetting: Splits
    for_scoring: Splits


def is_calibration(id_: str) -> bool:
    """Whether a held-out image is for calibration.

    Args:
        id_: Its id.

    >>> [index for index in range(12) if is_calibration(f"digits/{index}")]
    [0, 3, 10, 11]
    """
    return int.from_bytes(sha256(id_.encode()).digest()[:8], "big") % 4 == 0


def calibration_mask(images: Images) -> Tensor:
    """Which held-out images are for calibration.

    Args:
        images: Held-out images.
    """
    return torch.tensor([is_calibration(id_) for id_ in images.ids], dtype=torch.bool)


def calibration_split(splits: Splits) -> CalibrationSplit:
    """Divide the held-out images of a request: a quarter to calibrate a run, the rest to score it.

    Give `for_forgetting` to `famr.forget` and `for_scoring` to `famr.evaluate` and `famr.audit`. Without held-out
    images both are the same.

    Args:
        splits: The sets of a request.

    Raises:
        DataError: Fewer than 20 images would be left for calibration, or for scoring.
    """
    if splits.test is None:
        return CalibrationSplit(replace(splits, forget_test=None), splits)
    mask = calibration_mask(splits.test)
    calibration, scored = int(mask.sum()), int((~mask).sum())
    if min(calibration, scored) < FEWEST:
        raise DataError(
            f"{len(splits.test)} held-out images are too few to set some aside for calibration: "
            f"that gives {calibration}, and leaves {scored} to score; each must be at least {FEWEST}.",
            where=splits.request.describe(),
            fix=f"Give more held-out images, about {5 * FEWEST}; or forget without any, and score all of them.",
        )
    return CalibrationSplit(
        replace(splits, test=splits.test.where(mask), forget_test=None),
        replace(splits, test=splits.test.where(~mask)),
    )


def calibration_split_or_none_seen(splits: Splits) -> CalibrationSplit:
    """Divide the held-out images; where they are too few for that, the run sees none of them and all are scored.

    Args:
        splits: The sets of a request.
    """
    try:
        return calibration_split(splits)
    except DataError:
        return CalibrationSplit(replace(splits, test=None, forget_test=None), splits)


def rule_of(test: Images | None) -> str | None:
    """How the held-out images that a run was given were chosen, as its record says it.

    Args:
        test: The held-out images that the run was given.

    Returns:
        None where some are no calibration images, so that scored images may be among them.
    """
    if test is None:
        return NONE_SEEN
    return RULE if bool(calibration_mask(test).all()) else None


def scored_splits(record: Mapping[str, Any], splits: Splits) -> Splits:
    """The sets on which a run is scored; all of them for a run that does not record its calibration.

    Args:
        record: The content of its run.json.
        splits: All images of the request.

    Raises:
        CheckpointError: The record names a rule that is not known.
        DataError: Too few images are left.
    """
    return calibration_split(splits).for_scoring if _rule(record) == RULE else splits


def seen_splits(record: Mapping[str, Any], splits: Splits) -> Splits:
    """The sets that a run was given; all of them for a run that does not record its calibration.

    Args:
        record: The content of its run.json.
        splits: All images of the request.

    Raises:
        CheckpointError: The record names a rule that is not known.
        DataError: Too few images are left.
    """
    rule = _rule(record)
    if rule == NONE_SEEN:
        return replace(splits, test=None, forget_test=None)
    return splits if rule is None else calibration_split(splits).for_forgetting


def calibration_may_be_scored(record: Mapping[str, Any]) -> bool:
    """Whether images that calibrated a run may be among those that it is scored on.

    So it is in the first edition, and where a run from Python was given all held-out images.

    Args:
        record: The content of its run.json.
    """
    return _rule(record) is None


def _rule(record: Mapping[str, Any]) -> str | None:
    rule: str | None = record.get("calibration")
    if rule not in (None, NONE_SEEN, RULE):
        raise CheckpointError(
            "The run names a rule for its calibration images that this famr does not know.",
            where=f"run.json: calibration = {rule!r}; known: {RULE}, {NONE_SEEN}",
            fix="Use the version of famr that made the run.",
        )
    return rule
