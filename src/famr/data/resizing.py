"""Resizing on a GPU as two matrix products: a row and a column of the result are sums of the stored ones.

The usual kernel computes every weight anew for every pixel and takes longer than a small network does. The weights
depend on the sizes alone; they are read off the library's own answer to the unit vectors.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F


def resized_size(height: int, width: int, resize: int | tuple[int, int]) -> tuple[int, int]:
    """Height and width after resizing: both sides for a pair; for a number the shorter side, the other in proportion.

    >>> resized_size(30, 40, 60), resized_size(30, 40, (8, 9))
    ((60, 80), (8, 9))
    """
    if not isinstance(resize, int):
        return resize
    longer = int(resize * max(height, width) / min(height, width))
    return (resize, longer) if height <= width else (longer, resize)


@lru_cache(maxsize=32)
def weights(stored: int, wanted: int, first: int, kept: int, how: str, device: torch.device) -> Tensor:
    """(kept, stored): how each pixel from `first` on of `wanted` along a side is made of those stored."""
    unit = torch.eye(stored)[None, None]
    along = F.interpolate(unit, size=(wanted, stored), mode=how, antialias=True, align_corners=False)[0, 0]
    return along[first : first + kept].to(device)


def resize_and_crop(images: Tensor, resize: int | tuple[int, int], crop: tuple[int, int], how: str) -> Tensor | None:
    """uint8 images (…, height, width), resized and cut out in the middle; None where the crop is the larger."""
    height, width = images.shape[-2:]
    tall, wide = resized_size(height, width, resize)
    if crop[0] > tall or crop[1] > wide:
        return None
    top, left = round((tall - crop[0]) / 2), round((wide - crop[1]) / 2)
    rows = weights(height, tall, top, crop[0], how, images.device)
    columns = weights(width, wide, left, crop[1], how, images.device)
    return _whole(rows @ _whole(images.float() @ columns.mT)).to(torch.uint8)


def _whole(pixels: Tensor) -> Tensor:
    """Rounded to 0 … 255, halves upwards: after each side, as Pillow has it."""
    return pixels.add_(0.5).floor_().clamp_(0, 255)
