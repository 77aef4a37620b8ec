"""Labelled images that are decoded only when they are asked for."""

from __future__ import annotations

import io
import os
import struct
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from famr.errors import DataError, RequestError
from famr.metrics.predictions import UNLABELLED as UNLABELLED

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
MAX_PIXELS = 50_000_000
LARGEST_KEPT = 1 << 20
"""Bytes of pixels above which an image is decoded anew each time: photographs would soon fill the memory."""
UNREADABLE = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    IndexError,
    KeyError,
    TypeError,
    OverflowError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
    Image.DecompressionBombWarning,
)
"""What Pillow's decoders raise on files that somebody has damaged, or made."""


def open_image(file: Path | bytes) -> Image.Image:
    """Decode one image completely; refuse unknown formats, and sizes that exist only to exhaust memory."""
    with Image.open(io.BytesIO(file) if isinstance(file, bytes) else file, formats=FORMATS) as image:
        width, height = image.size
        if width * height > MAX_PIXELS:
            raise ValueError(f"{width}×{height} pixels are more than the {MAX_PIXELS:,} allowed")
        image.load()
    return image


def in_eight_bits(image: Image.Image) -> Image.Image:
    """Scale 16-bit grey to 8 bits, which Pillow would clip to white; refuse numbers without a known range."""
    if image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image) // 257).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError(f"its pixels are of the mode {image.mode!r}, which has no fixed range; save it with 8 bits")
    return image


class Shelf:
    """Images of one size side by side on a device, one place a row of the source; places are filled when asked for."""

    def __init__(self, places: int, like: Tensor, device: torch.device) -> None:
        self.pixels = torch.empty((places, *like.shape), dtype=torch.uint8, device=device)
        self.filled = torch.zeros(places, dtype=torch.bool)


class PixelCache:
    """Decoded pixels, kept as long as they fit; what does not fit is decoded again each time."""

    def __init__(self, budget: int | None = None) -> None:
        self._budget = _quarter_of_memory() if budget is None else budget
        self._pixels: dict[tuple[int, int], Tensor] = {}
        self._lock = threading.Lock()
        self.shelves: dict[tuple[int, str], Shelf] = {}
        """By channels and device."""
        self.prepared: tuple[Tensor, object, Tensor] | None = None
        """The rows that were last kept as a network takes them, how they were prepared, and they themselves."""

    def get(self, row: int, channels: int) -> Tensor | None:
        """The pixels of a row, if they are kept."""
        return self._pixels.get((row, channels))

    def keep(self, row: int, channels: int, pixels: Tensor) -> None:
        """Keep the pixels of a row, if they fit."""
        with self._lock:
            if self._budget >= pixels.nbytes <= LARGEST_KEPT and (row, channels) not in self._pixels:
                self._budget -= pixels.nbytes
                self._pixels[row, channels] = pixels


def _quarter_of_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4
    except (AttributeError, OSError, ValueError):
        return 2 << 30


@dataclass(frozen=True, eq=False)
class Images:
    """A set of labelled images: ids, class indices and further columns in memory, pixels on demand.

    `rows` picks images out of the source that `decode`, `all_ids`, `all_targets` and `all_columns` describe,
    so that every subset shares one source and one cache.
    """

    decode: Callable[[int], Image.Image]
    all_ids: Sequence[str]
    all_targets: Tensor
    all_columns: Mapping[str, Sequence[str]] = field(default_factory=dict)
    rows: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))
    cache: PixelCache = field(default_factory=PixelCache)

    @classmethod
    def from_source(
        cls,
        decode: Callable[[int], Image.Image],
        ids: Sequence[str],
        targets: Tensor,
        columns: Mapping[str, Sequence[str]] | None = None,
    ) -> Images:
        """Every image of a source."""
        return cls(decode, ids, targets, columns or {}, torch.arange(len(ids)))

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def targets(self) -> Tensor:
        """Class indices; `UNLABELLED` where there is no label."""
        return self.all_targets[self.rows]

    @property
    def labelled(self) -> bool:
        """Whether every image has a class."""
        return bool((self.targets != UNLABELLED).all())

    def class_counts(self) -> dict[int, int]:
        """How many images there are of each class that occurs, in the order of the indices."""
        targets = self.targets
        counts = torch.bincount(targets[targets != UNLABELLED]).tolist()
        return {target: count for target, count in enumerate(counts) if count}

    @property
    def ids(self) -> list[str]:
        """A name for each image: its path, or its place in the table it comes from."""
        return [self.all_ids[row] for row in self.rows.tolist()]

    def column(self, name: str) -> list[str]:
        """One column, as text."""
        if name not in self.all_columns:
            known = ", ".join(sorted(self.all_columns)) or "none"
            raise RequestError(
                f"The data has no column {name!r}.",
                where=f"columns: {known}",
                fix="Name one of these columns, or add it to the data (a folder takes it from metadata.csv).",
            )
        values = self.all_columns[name]
        return [values[row] for row in self.rows.tolist()]

    def where(self, mask: Tensor) -> Images:
        """The images for which `mask` is true."""
        return replace(self, rows=self.rows[mask])

    def take(self, positions: Tensor) -> Images:
        """The images at these positions, in this order."""
        return replace(self, rows=self.rows[positions])

    def with_targets(self, mapping: Sequence[int]) -> Images:
        """The same images with class index i replaced by `mapping[i]`."""
        known = self.all_targets >= 0
        table = torch.tensor([*mapping, UNLABELLED])
        return replace(self, all_targets=table[torch.where(known, self.all_targets, len(mapping))])

    def pixels(self, position: int, channels: int) -> Tensor:
        """The image at `position` as uint8 (channels, height, width), as large as it is stored."""
        row = int(self.rows[position])
        kept = self.cache.get(row, channels)
        if kept is not None:
            return kept
        try:
            image, mode = in_eight_bits(self.decode(row)), "RGB" if channels == 3 else "L"
            if image.mode != mode:
                image = image.convert(mode)
        except UNREADABLE as error:
            raise DataError(
                f"An image cannot be read: {_reason(error)}.",
                where=self.all_ids[row],
                fix="Replace the file, or take it out of the data. famr never skips an image silently.",
            ) from error
        pixels = torch.from_numpy(np.array(image)).reshape(image.height, image.width, channels).permute(2, 0, 1)
        self.cache.keep(row, channels, pixels)
        return pixels


def joined(first: Images, second: Images) -> Images:
    """The images of both, with the columns that both have."""
    count = len(first)

    def decode(row: int) -> Image.Image:
        part, place = (first, row) if row < count else (second, row - count)
        return part.decode(int(part.rows[place]))

    both = first.all_columns.keys() & second.all_columns.keys()
    return Images.from_source(
        decode=decode,
        ids=[*first.ids, *second.ids],
        targets=torch.cat([first.targets, second.targets]),
        columns={name: [*first.column(name), *second.column(name)] for name in both},
    )


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "the file is not there"
    if isinstance(error, UnidentifiedImageError):
        return f"it is none of {', '.join(FORMATS)}"
    return str(error).rstrip(".") or type(error).__name__
