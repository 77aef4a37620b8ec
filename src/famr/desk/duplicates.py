"""The same picture again: exactly, or after it was resized, recompressed or made brighter.

Exact is the SHA-256 of the decoded pixels. Near is the correlation of two 8×8 grey thumbnails, a perceptual hash that
is compared by its cosine instead of by bits: on small pictures with a plain background the bits of a difference hash
are noise. Mirrored or cropped pictures are not found, nor are near-duplicates of a picture of one colour.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image

if TYPE_CHECKING:
    from famr.data import Images

NEAR = 0.985
"""The correlation from which two pictures count as the same one."""
SIDE = 8
CHUNK = 1024


@dataclass(frozen=True)
class Fingerprint:
    """What two pictures are compared by."""

    pixels: str
    """SHA-256 of size and RGB pixels."""
    thumbnail: bytes
    """SIDE × SIDE grey levels."""


@dataclass(frozen=True)
class Match:
    """A picture of the first set and one of the second, by their places; `similarity` is None for the same pixels."""

    first: int
    second: int
    similarity: float | None


def fingerprint(rgb: NDArray[np.uint8]) -> Fingerprint:
    """Of pixels (height, width, 3)."""
    height, width, _ = rgb.shape
    digest = hashlib.sha256(f"{width}×{height} RGB\n".encode() + rgb.tobytes()).hexdigest()
    small = Image.fromarray(rgb).convert("L").resize((SIDE, SIDE), Image.Resampling.LANCZOS)  # least blur
    return Fingerprint(digest, small.tobytes())


def fingerprints(images: Images) -> list[Fingerprint]:
    """Of every image of a set; one that cannot be read is an error, as everywhere."""
    return [
        fingerprint(np.ascontiguousarray(images.pixels(place, 3).permute(1, 2, 0).numpy()))
        for place in range(len(images))
    ]


def matches(first: Sequence[Fingerprint], second: Sequence[Fingerprint]) -> list[Match]:
    """Every pair that is the same picture, exactly or nearly, in the order of the two sets."""
    if not first or not second:
        return []
    theirs = _directions(second)
    by_pixels: dict[str, list[int]] = {}
    for place, each in enumerate(second):
        by_pixels.setdefault(each.pixels, []).append(place)
    found = []
    for start in range(0, len(first), CHUNK):
        part = first[start : start + CHUNK]
        likeness = _directions(part) @ theirs.T
        for row, each in enumerate(part):
            exact = set(by_pixels.get(each.pixels, ()))
            near = set(np.nonzero(likeness[row] >= NEAR)[0].tolist())
            found += [
                Match(start + row, place, None if place in exact else round(float(likeness[row, place]), 4))
                for place in sorted(exact | near)
            ]
    return found


def _directions(prints: Sequence[Fingerprint]) -> NDArray[np.float32]:
    """Thumbnails as centred vectors of length 1; 0 for a picture of one colour."""
    grey = np.stack([np.frombuffer(each.thumbnail, dtype=np.uint8) for each in prints]).astype(np.float32)
    centred = grey - grey.mean(axis=1, keepdims=True)
    lengths = np.linalg.norm(centred, axis=1, keepdims=True)
    directions: NDArray[np.float32] = centred / np.where(lengths > 1e-6, lengths, np.inf)
    return directions
