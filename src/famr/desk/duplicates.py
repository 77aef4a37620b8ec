"""Copies of an image: exact, or after it was resized, recompressed or made brighter.

Exact copies have the same SHA-256 of the decoded pixels. Near copies are found by the correlation of two 8×8 grey
thumbnails: a perceptual hash that is compared by its cosine instead of by bits, because on small images with a plain
background the bits of a difference hash are noise. Mirrored or cropped copies are not found, nor are near copies of an
image of one colour.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from famr.storage.digests import bytes_digest

if TYPE_CHECKING:
    from famr.data import Images

NEAR = 0.985
"""The correlation from which two images count as copies."""
SIDE = 8
CHUNK = 1024
"""Images compared at once, which bounds the size of the correlation matrix."""


@dataclass(frozen=True)
class Fingerprint:
    """What an image is compared by.

    Attributes:
        pixels: SHA-256 of its size and RGB pixels.
        thumbnail: SIDE × SIDE grey levels.
    """

    pixels: str
    thumbnail: bytes


@dataclass(frozen=True)
class Match:
    """An image of a first set and its copy in a second.

    Attributes:
        first: Index in the first set.
        second: Index in the second set.
        similarity: Correlation of the thumbnails; None for the same pixels.
    """

    first: int
    second: int
    similarity: float | None


def image_fingerprint(rgb: NDArray[np.uint8]) -> Fingerprint:
    """The fingerprint of one image.

    Args:
        rgb: Pixels, (height, width, 3).
    """
    height, width, _ = rgb.shape
    digest = bytes_digest(f"{width}×{height} RGB\n".encode() + rgb.tobytes())
    small = Image.fromarray(rgb).convert("L").resize((SIDE, SIDE), Image.Resampling.LANCZOS)  # least blur
    return Fingerprint(digest, small.tobytes())


def fingerprints(images: Images) -> list[Fingerprint]:
    """The fingerprint of every image of a set, in its order.

    Args:
        images: The set.

    Raises:
        DataError: An image cannot be read.
    """
    return [
        image_fingerprint(np.ascontiguousarray(images.pixels(index, 3).permute(1, 2, 0).numpy()))
        for index in range(len(images))
    ]


def matches(first: Sequence[Fingerprint], second: Sequence[Fingerprint]) -> list[Match]:
    """Every pair of copies, exact or near, ordered by their indices.

    Args:
        first: Fingerprints of one set.
        second: Fingerprints of another set, or of the same.
    """
    if not first or not second:
        return []
    second_units = _unit_vectors(second)
    by_pixels: dict[str, list[int]] = {}
    for index, print_ in enumerate(second):
        by_pixels.setdefault(print_.pixels, []).append(index)
    pairs = []
    for start in range(0, len(first), CHUNK):
        chunk = first[start : start + CHUNK]
        correlations = _unit_vectors(chunk) @ second_units.T  # (chunk, second)
        for row, print_ in enumerate(chunk):
            exact = set(by_pixels.get(print_.pixels, ()))
            near = set(np.nonzero(correlations[row] >= NEAR)[0].tolist())
            pairs += [
                Match(start + row, index, None if index in exact else round(float(correlations[row, index]), 4))
                for index in sorted(exact | near)
            ]
    return pairs


def _unit_vectors(prints: Sequence[Fingerprint]) -> NDArray[np.float32]:
    """Centred thumbnails of length 1, (prints, SIDE²); 0 for an image of one colour."""
    grey = np.stack([np.frombuffer(print_.thumbnail, dtype=np.uint8) for print_ in prints]).astype(np.float32)
    centred = grey - grey.mean(axis=1, keepdims=True)
    lengths = np.linalg.norm(centred, axis=1, keepdims=True)
    units: NDArray[np.float32] = centred / np.where(lengths > 1e-6, lengths, np.inf)
    return units
