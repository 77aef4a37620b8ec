"""Random crops: the two matrix products are torch's bicubic resampling, and stay inside the image."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from famr.data.augmentation import Augmentation, augment, bicubic_weights


def generator_of(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def by_grid_sample(pixels: Tensor, size: tuple[int, int], augmentation: Augmentation, seed: int) -> Tensor:
    """The same random crops by `grid_sample`, as an affine map of the output grid."""
    count, generator = len(pixels), generator_of(seed)
    draws = [torch.rand(count, generator=generator) for _ in range(5 if augmentation.mirror else 4)]
    area = augmentation.smallest_area + (1 - augmentation.smallest_area) * draws[0]
    aspect = ((2 * draws[1] - 1) * math.log(augmentation.widest_aspect)).exp()
    width, height = (area * aspect).sqrt().clamp(max=1), (area / aspect).sqrt().clamp(max=1)
    centre_x, centre_y = (1 - width) * (2 * draws[2] - 1), (1 - height) * (2 * draws[3] - 1)
    if augmentation.mirror:
        width = torch.where(draws[4] < 0.5, -width, width)
    zero = torch.zeros_like(width)
    theta = torch.stack([width, zero, centre_x, zero, height, centre_y], dim=1).view(-1, 2, 3)
    grid = F.affine_grid(theta, [count, pixels.shape[1], *size], align_corners=False)
    view = F.grid_sample(pixels.float(), grid, mode="bicubic", padding_mode="border", align_corners=False)
    return view.clamp(0, 255)


@pytest.mark.parametrize("mirror", [True, False])
@pytest.mark.parametrize(
    ("stored", "size"), [((8, 8), (16, 16)), ((12, 7), (5, 9)), ((32, 32), (32, 32)), ((1, 1), (3, 3))]
)
def test_a_crop_agrees_with_torchs_grid_sample(stored: tuple[int, int], size: tuple[int, int], mirror: bool) -> None:
    pixels = torch.randint(0, 256, (20, 3, *stored), generator=generator_of(1), dtype=torch.uint8)
    augmentation = Augmentation(smallest_area=0.3, mirror=mirror)
    crops = augment(pixels, size, augmentation, generator_of(2))
    assert crops.shape == (20, 3, *size)
    torch.testing.assert_close(crops, by_grid_sample(pixels, size, augmentation, 2), rtol=0, atol=0.01)


def test_a_crop_of_a_uniform_image_is_uniform() -> None:
    """The weights of a pixel add up to one, also at the border."""
    share, centre = torch.tensor([1.0, -1.0, 0.5, 0.9]), torch.tensor([0.0, 0.0, -0.5, 0.1])
    weights = bicubic_weights(6, 17, share, centre)
    torch.testing.assert_close(weights.sum(-1), torch.ones(4, 17))


def test_a_crop_of_the_whole_image_is_the_image() -> None:
    pixels = torch.randint(0, 256, (3, 3, 9, 9), generator=generator_of(0), dtype=torch.uint8)
    whole = Augmentation(smallest_area=1.0, widest_aspect=1.0, mirror=False)
    torch.testing.assert_close(augment(pixels, (9, 9), whole, generator_of(0)), pixels.float(), rtol=0, atol=1e-3)
