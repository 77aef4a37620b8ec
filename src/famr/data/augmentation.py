"""Random crops and mirror images, drawn for a whole batch on the device it lies on."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

SHARP = -0.75
"""The slope of the cubic at one pixel's distance, as torch has it."""


@dataclass(frozen=True)
class Augmentation:
    """Each image is cut to a random part of its area and of its shape, and mirrored half of the time."""

    smallest_area: float = 0.6
    widest_aspect: float = 4 / 3
    mirror: bool = True


def augment(pixels: Tensor, size: tuple[int, int], augmentation: Augmentation, generator: torch.Generator) -> Tensor:
    """A random view of each image (batch, channels, h, w) as floats from 0 to 255, of the size the model takes.

    Crop, resize and mirror are one bicubic resampling along each side, so that a view is two matrix products with the
    image. `generator` lives on the device of the pixels.
    """
    count = len(pixels)

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(count, generator=generator, device=pixels.device)

    area = uniform(augmentation.smallest_area, 1.0)
    aspect = uniform(-1.0, 1.0).mul(math.log(augmentation.widest_aspect)).exp()
    width = (area * aspect).sqrt().clamp(max=1.0)  # as a share of the image
    height = (area / aspect).sqrt().clamp(max=1.0)
    across = (1 - width) * uniform(-1.0, 1.0)  # where the crop's centre lies
    down = (1 - height) * uniform(-1.0, 1.0)
    if augmentation.mirror:
        width = torch.where(uniform(0.0, 1.0) < 0.5, -width, width)
    rows = bicubic_weights(pixels.shape[-2], size[0], height, down)[:, None]
    columns = bicubic_weights(pixels.shape[-1], size[1], width, across)[:, None]
    return (rows @ (pixels.float() @ columns.mT)).clamp_(0.0, 255.0)


def bicubic_weights(stored: int, wanted: int, share: Tensor, centre: Tensor) -> Tensor:
    """(images, wanted, stored): how each pixel along a side of a view is made of those stored along that side.

    The view has a `share` of the side, mirrored where that is negative, around a `centre` from −1 to 1. Beyond the
    border lies what is at it.

    >>> bicubic_weights(2, 2, torch.tensor([1.0, -1.0]), torch.zeros(2))
    tensor([[[1., 0.],
             [0., 1.]],
    <BLANKLINE>
            [[0., 1.],
             [1., 0.]]])
    """
    ends = torch.arange(1, 2 * wanted, 2, device=share.device) / wanted - 1  # of a pixel's middle, from −1 to 1
    place = ((share[:, None] * ends + centre[:, None] + 1) * stored - 1) / 2  # in pixels of the stored side
    below = place.floor()
    after = place - below
    near = torch.stack([after, 1 - after])  # how far the two pixels around it are
    far = near + 1  # and those beside them
    inner = ((SHARP + 2) * near - (SHARP + 3)) * near * near + 1  # Keys's cubic convolution
    outer = ((SHARP * far - 5 * SHARP) * far + 8 * SHARP) * far - 4 * SHARP
    weights = torch.zeros(len(share), wanted, stored, device=share.device)
    every = torch.arange(stored, device=share.device)
    for step, weight in zip((-1, 0, 1, 2), (outer[0], *inner, outer[1]), strict=True):
        there = (below + step).clamp(0, stored - 1)
        weights += torch.where(there[..., None] == every, weight[..., None], 0.0)
    return weights
