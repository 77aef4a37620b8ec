"""Random crops and mirror images, drawn for a whole batch on the device it lies on."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Augmentation:
    """Each image is cut to a random part of its area and of its shape, and mirrored half of the time."""

    smallest_area: float = 0.6
    widest_aspect: float = 4 / 3
    mirror: bool = True


def augment(pixels: Tensor, size: tuple[int, int], augmentation: Augmentation, generator: torch.Generator) -> Tensor:
    """A random view of each image (batch, channels, h, w) as floats from 0 to 255, of the size the model takes.

    The view is an affine map of the output grid: one bicubic resampling does crop, resize and mirror at once.
    `generator` lives on the device of the pixels.
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
    zero = torch.zeros_like(width)
    theta = torch.stack([width, zero, across, zero, height, down], dim=1).view(-1, 2, 3)
    grid = F.affine_grid(theta, [count, pixels.shape[1], *size], align_corners=False)
    view = F.grid_sample(pixels.float(), grid, mode="bicubic", padding_mode="border", align_corners=False)
    return view.clamp(0.0, 255.0)
