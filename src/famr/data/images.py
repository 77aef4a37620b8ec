"""Labelled images, decoded when their pixels are needed."""

from __future__ import annotations

import io
import os
import struct
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from famr.errors import DataError, RequestError
from famr.metrics.predictions import UNLABELLED as UNLABELLED

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
MAX_PIXELS = 50_000_000
MAX_CACHED_IMAGE = 1 << 20
"""Bytes of pixels above which an image is not cached: photographs would soon fill the memory."""
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
"""What Pillow's decoders raise on damaged or malicious files."""


def open_image(file: Path | bytes) -> Image.Image:
    """Decode one image completely.

    Args:
        file: Path of the file, or its content.

    Raises:
        ValueError: The image has more than `MAX_PIXELS`, as its header says.
        OSError: The file is missing, damaged or of a format outside `FORMATS`; decoders raise other types of
            `UNREADABLE` too.
    """
    with Image.open(io.BytesIO(file) if isinstance(file, bytes) else file, formats=FORMATS) as image:
        width, height = image.size
        if width * height > MAX_PIXELS:
            raise ValueError(f"{width}×{height} pixels are more than the {MAX_PIXELS:,} allowed")
        image.load()
    return image


def to_eight_bits(image: Image.Image) -> Image.Image:
    """Scale 16-bit grey to 8 bits, which Pillow would clip to white.

    Args:
        image: A decoded image; any other mode with 8 bits is returned as it is.

    Raises:
        ValueError: The pixels are integers or floats without a fixed range.
    """
    if image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image) // 257).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError(f"its pixels are of the mode {image.mode!r}, which has no fixed range; save it with 8 bits")
    return image


class DevicePixels:
    """Stored images of one size on a device, one row per image of the source; rows are filled when first needed.

    Args:
        count: Images of the source.
        like: One image, (channels, height, width), for the shape.
        device: Where the pixels are kept.

    Attributes:
        pixels: uint8, (count, channels, height, width).
        filled: Which rows hold an image, (count,).
    """

    def __init__(self, count: int, like: Tensor, device: torch.device) -> None:
        self.pixels = torch.empty((count, *like.shape), dtype=torch.uint8, device=device)
        self.filled = torch.zeros(count, dtype=torch.bool)


class PreparedImages(NamedTuple):
    """A set of images as a network takes them.

    Attributes:
        rows: Which rows of the source, (images,).
        key: How they were prepared: preprocessing and device.
        images: (images, channels, height, width).
    """

    rows: Tensor
    key: object
    images: Tensor


class PixelCache:
    """Decoded pixels of one source, shared by all subsets of it; images that do not fit are decoded again.

    Args:
        budget: Bytes of pixels to keep; None for a quarter of the machine's memory.

    Attributes:
        on_device: Pixels on devices, by channels and device.
        prepared: The images that were last kept as a network takes them; None where there are none.
    """

    def __init__(self, budget: int | None = None) -> None:
        self._budget = _quarter_of_memory() if budget is None else budget
        self._pixels: dict[tuple[int, int], Tensor] = {}
        self._lock = threading.Lock()
        self.on_device: dict[tuple[int, str], DevicePixels] = {}
        self.prepared: PreparedImages | None = None

    def get(self, row: int, channels: int) -> Tensor | None:
        """The cached pixels of an image.

        Args:
            row: Row of the source.
            channels: 1 for grey, 3 for colour.

        Returns:
            uint8, (channels, height, width); None where the image is not cached.
        """
        return self._pixels.get((row, channels))

    def store(self, row: int, channels: int, pixels: Tensor) -> None:
        """Cache the pixels of an image, if they fit.

        Args:
            row: Row of the source.
            channels: 1 for grey, 3 for colour.
            pixels: uint8, (channels, height, width).
        """
        with self._lock:
            if self._budget >= pixels.nbytes <= MAX_CACHED_IMAGE and (row, channels) not in self._pixels:
                self._budget -= pixels.nbytes
                self._pixels[row, channels] = pixels


def _quarter_of_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4
    except (AttributeError, OSError, ValueError):
        return 2 << 30


@dataclass(frozen=True, eq=False)
class Images:
    """A set of labelled images: ids, class indices and columns in memory, pixels decoded when needed.

    A subset differs in `rows` alone, so that all subsets share one source and one cache.

    Attributes:
        decode: Decodes a row of the source.
        all_ids: Id of each row of the source.
        all_targets: Class index of each row; `UNLABELLED` where the class is not known.
        all_columns: Further columns by name, one text per row.
        rows: Rows of the source that are in this set, (images,).
        cache: Decoded pixels of the source.
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
        """The set of all images of a source.

        Args:
            decode: Decodes a row of the source; may be called from several threads.
            ids: Id of each row, such as its path.
            targets: Class index of each row; `UNLABELLED` where the class is not known.
            columns: Further columns by name, one text per row; None for none.
        """
        return cls(decode, ids, targets, columns or {}, torch.arange(len(ids)))

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def targets(self) -> Tensor:
        """Class indices, (images,); `UNLABELLED` where the class is not known."""
        return self.all_targets[self.rows]

    @property
    def labelled(self) -> bool:
        """Whether the class of every image is known."""
        return bool((self.targets != UNLABELLED).all())

    def class_counts(self) -> dict[int, int]:
        """Number of images of each class that occurs, in the order of the indices."""
        targets = self.targets
        counts = torch.bincount(targets[targets != UNLABELLED]).tolist()
        return {target: count for target, count in enumerate(counts) if count}

    @property
    def ids(self) -> list[str]:
        """Id of each image: its path, or its row in the table it comes from."""
        return [self.all_ids[row] for row in self.rows.tolist()]

    def column(self, name: str) -> list[str]:
        """One column as text.

        Args:
            name: Name of the column.

        Raises:
            RequestError: There is no such column.
        """
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
        """The images for which a mask is true, in the same order.

        Args:
            mask: Booleans, (images,).
        """
        return replace(self, rows=self.rows[mask])

    def take(self, positions: Tensor) -> Images:
        """The images with these indices in the set, in this order.

        Args:
            positions: Indices in the set, any number of them.
        """
        return replace(self, rows=self.rows[positions])

    def with_targets(self, mapping: Sequence[int]) -> Images:
        """The same images with other class indices.

        Args:
            mapping: New class index of each class; images without a class stay without.
        """
        known = self.all_targets >= 0
        table = torch.tensor([*mapping, UNLABELLED])
        return replace(self, all_targets=table[torch.where(known, self.all_targets, len(mapping))])

    def pixels(self, position: int, channels: int) -> Tensor:
        """Decode one image.

        Args:
            position: Index of the image in the set.
            channels: 1 for grey, 3 for colour.

        Returns:
            uint8, (channels, height, width), of the size it is stored in.

        Raises:
            DataError: The image cannot be read.
        """
        row = int(self.rows[position])
        cached = self.cache.get(row, channels)
        if cached is not None:
            return cached
        try:
            image, mode = to_eight_bits(self.decode(row)), "RGB" if channels == 3 else "L"
            if image.mode != mode:
                image = image.convert(mode)
        except UNREADABLE as error:
            raise DataError(
                f"An image cannot be read: {_reason(error)}.",
                where=self.all_ids[row],
                fix="Replace the file, or take it out of the data. famr never skips an image silently.",
            ) from error
        pixels = torch.from_numpy(np.array(image)).reshape(image.height, image.width, channels).permute(2, 0, 1)
        self.cache.store(row, channels, pixels)
        return pixels


def concatenate_images(first: Images, second: Images) -> Images:
    """The images of two sets, with the columns that both have.

    Args:
        first: Comes first.
        second: Comes after it; from the same source or another one.
    """
    count = len(first)

    def decode(row: int) -> Image.Image:
        part, index = (first, row) if row < count else (second, row - count)
        return part.decode(int(part.rows[index]))

    shared = first.all_columns.keys() & second.all_columns.keys()
    return Images.from_source(
        decode=decode,
        ids=[*first.ids, *second.ids],
        targets=torch.cat([first.targets, second.targets]),
        columns={name: [*first.column(name), *second.column(name)] for name in shared},
    )


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "the file is not there"
    if isinstance(error, UnidentifiedImageError):
        return f"it is none of {', '.join(FORMATS)}"
    return str(error).rstrip(".") or type(error).__name__
