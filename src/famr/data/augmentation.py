"""Random crops and mirror images of a whole batch, computed on the batch's device."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

CUBIC_A = -0.75
"""a of Keys's cubic convolution kernel (its derivative at a distance of one pixel), as in torch."""


@dataclass(frozen=True)
class Augmentation:
    """Random resized crop and horizontal mirror image.

    Attributes:
        smallest_area: Smallest share of the image's area that a crop has, in (0, 1].
        widest_aspect: Largest change of the aspect ratio, at least 1.
        mirror: Whether half of the crops are mirrored.
    """

    smallest_area: float = 0.6
    widest_aspect: float = 4 / 3
    mirror: bool = True


def augment(pixels: Tensor, size: tuple[int, int], augmentation: Augmentation, generator: torch.Generator) -> Tensor:
    """A random crop of each image, resized to the size that the model takes.

    Crop, resize and mirror are one bicubic resampling along each side: two matrix products with the image.

    Args:
        pixels: uint8, (batch, channels, height, width).
        size: Height and width of the result.
        augmentation: Ranges of the random crops.
        generator: Of the random draws; on the device of the pixels.

    Returns:
        (batch, channels, *size), floats from 0 to 255.
    """
    count = len(pixels)

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(count, generator=generator, device=pixels.device)

    area = uniform(augmentation.smallest_area, 1.0)
    aspect = uniform(-1.0, 1.0).mul(math.log(augmentation.widest_aspect)).exp()
    width = (area * aspect).sqrt().clamp(max=1.0)  # as a share of the image
    height = (area / aspect).sqrt().clamp(max=1.0)
    centre_x = (1 - width) * uniform(-1.0, 1.0)
    centre_y = (1 - height) * uniform(-1.0, 1.0)
    if augmentation.mirror:
        width = torch.where(uniform(0.0, 1.0) < 0.5, -width, width)
    rows = bicubic_weights(pixels.shape[-2], size[0], height, centre_y)[:, None]
    columns = bicubic_weights(pixels.shape[-1], size[1], width, centre_x)[:, None]
    return (rows @ (pixels.float() @ columns.mT)).clamp_(0.0, 255.0)


def bicubic_weights(source: int, target: int, share: Tensor, centre: Tensor) -> Tensor:
    """Weights of source pixels in each target pixel along one side, by Keys's cubic convolution.

    Beyond the border the border's pixel is repeated.

    Args:
        source: Pixels of the stored side.
        target: Pixels of the resampled side.
        share: Share of the side that each crop covers, (images,); negative for a mirrored crop.
        centre: Centre of each crop, from −1 to 1, (images,).

    Returns:
        (images, target, source).

    >>> bicubic_weights(2, 2, torch.tensor([1.0, -1.0]), torch.zeros(2))
    tensor([[[1., 0.],
             [0., 1.]],
    <BLANKLINE>
            [[0., 1.],
             [1., 0.]]])
    """
    grid = torch.arange(1, 2 * target, 2, device=share.device) / target - 1  # pixel centres, from −1 to 1
    position = ((share[:, None] * grid + centre[:, None] + 1) * source - 1) / 2  # in pixels of the source
    below = position.floor()
    fraction = position - below
    near = torch.stack([fraction, 1 - fraction])  # distances of the two pixels around the position
    far = near + 1  # and of their outer neighbours
    inner = ((CUBIC_A + 2) * near - (CUBIC_A + 3)) * near * near + 1
    outer = ((CUBIC_A * far - 5 * CUBIC_A) * far + 8 * CUBIC_A) * far - 4 * CUBIC_A
    weights = torch.zeros(len(share), target, source, device=share.device)
    indices = torch.arange(source, device=share.device)
    for step, weight in zip((-1, 0, 1, 2), (outer[0], *inner, outer[1]), strict=True):
        neighbour = (below + step).clamp(0, source - 1)
        weights += torch.where(neighbour[..., None] == indices, weight[..., None], 0.0)
    return weights
