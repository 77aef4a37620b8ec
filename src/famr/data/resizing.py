"""Resizing on a GPU as two matrix products: each output row and column is a weighted sum of stored ones.

torch's kernel computes every weight anew for every pixel, which takes longer than a small network does. The weights
depend on the sizes alone; they are torch's own output for unit vectors.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F


def resized_size(height: int, width: int, resize: int | tuple[int, int]) -> tuple[int, int]:
    """Height and width after resizing.

    Args:
        height: Of the stored image.
        width: Of the stored image.
        resize: A number for the shorter side, the longer one in proportion; a pair for height and width.

    >>> resized_size(30, 40, 60), resized_size(30, 40, (8, 9))
    ((60, 80), (8, 9))
    """
    if not isinstance(resize, int):
        return resize
    longer = int(resize * max(height, width) / min(height, width))
    return (resize, longer) if height <= width else (longer, resize)


@lru_cache(maxsize=32)
def _resampling_weights(source: int, target: int, start: int, count: int, mode: str, device: torch.device) -> Tensor:
    """(count, source): weights of stored pixels in `count` of the `target` pixels along a side, from `start` on."""
    unit = torch.eye(source)[None, None]
    weights = F.interpolate(unit, size=(target, source), mode=mode, antialias=True, align_corners=False)[0, 0]
    return weights[start : start + count].to(device)


def resize_and_crop(images: Tensor, resize: int | tuple[int, int], crop: tuple[int, int], mode: str) -> Tensor | None:
    """Resize images and crop their centre.

    Args:
        images: uint8, (…, height, width).
        resize: As for `resized_size`.
        crop: Height and width of the result.
        mode: `bilinear` or `bicubic`, antialiased.

    Returns:
        uint8, (…, *crop); None where the crop is larger than the resized image.
    """
    height, width = images.shape[-2:]
    resized_height, resized_width = resized_size(height, width, resize)
    if crop[0] > resized_height or crop[1] > resized_width:
        return None
    top, left = round((resized_height - crop[0]) / 2), round((resized_width - crop[1]) / 2)
    rows = _resampling_weights(height, resized_height, top, crop[0], mode, images.device)
    columns = _resampling_weights(width, resized_width, left, crop[1], mode, images.device)
    return _rounded(rows @ _rounded(images.float() @ columns.mT)).to(torch.uint8)


def _rounded(pixels: Tensor) -> Tensor:
    """Rounded to 0 … 255, halves upwards: after each side, as in Pillow."""
    return pixels.add_(0.5).floor_().clamp_(0, 255)
