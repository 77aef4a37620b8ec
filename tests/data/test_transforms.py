from __future__ import annotations

import json

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from timm.data import create_transform, resolve_model_data_config
from torch import Tensor
from transformers import ViTImageProcessor

from famr.data.resizing import resize_and_crop
from famr.data.transforms import Interpolation, Preprocessing
from famr.models.from_timm import timm_preprocessing
from famr.models.from_transformers import processor_preprocessing

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def photo(height: int = 243, width: int = 317, seed: int = 0) -> Image.Image:
    """Soft shapes, hard edges and grain, as in a photograph."""
    random = np.random.default_rng(seed)
    soft = Image.fromarray(random.integers(0, 256, (9, 12, 3), dtype=np.uint8)).resize((width, height), Image.BICUBIC)
    array = np.array(soft).astype(float) + random.normal(0, 6, (height, width, 3))
    array[height // 3 : height // 2, width // 4 : width // 2] = (250, 30, 90)
    return Image.fromarray(array.clip(0, 255).astype(np.uint8))


def as_tensor(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def assert_same_picture(ours: Tensor, theirs: Tensor, std: tuple[float, ...]) -> None:
    assert ours.shape == theirs.shape
    difference = (ours - theirs).abs() * torch.tensor(std)[:, None, None] * 255
    assert (difference <= 2).float().mean() > 0.999
    assert difference.mean() < 0.5


@pytest.mark.parametrize("shape", [(243, 317), (317, 243), (60, 50), (160, 160)], ids=str)
@pytest.mark.parametrize(
    "overlay",
    [
        {},
        {"crop_pct": 0.875, "interpolation": "bilinear"},
        {"crop_pct": 1.0, "interpolation": "lanczos"},
        {"crop_pct": 0.95, "interpolation": "bicubic", "mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4)},
        {"crop_pct": 0.9, "crop_mode": "squash"},
        {"crop_pct": 0.9, "crop_mode": "squash", "input_size": (3, 96, 128)},
    ],
    ids=["published", "bilinear", "lanczos", "bicubic", "squash", "oblong"],
)
def test_preprocessing_agrees_with_timm(overlay, shape):
    model = timm.create_model("test_efficientnet", pretrained=False, pretrained_cfg_overlay=overlay)
    transform = create_transform(**resolve_model_data_config(model), is_training=False)
    preprocessing = timm_preprocessing(model)
    image = photo(*shape)
    ours = preprocessing.normalise(preprocessing.fit(as_tensor(image)))
    assert_same_picture(ours, transform(image), preprocessing.std)


@pytest.mark.parametrize("resample", [0, 1, 2, 3], ids=["nearest", "lanczos", "bilinear", "bicubic"])
def test_preprocessing_agrees_with_transformers(resample):
    processor = ViTImageProcessor(
        size={"height": 64, "width": 48}, resample=resample, image_mean=list(IMAGENET[0]), image_std=list(IMAGENET[1])
    )
    preprocessing = processor_preprocessing(processor)
    image = photo()
    ours = preprocessing.normalise(preprocessing.fit(as_tensor(image)))
    assert_same_picture(ours, processor(image, return_tensors="pt")["pixel_values"][0], preprocessing.std)


def test_nearest_takes_the_pixel_under_the_centre_as_pillow_does():
    image = photo(243, 317)
    fitted = Preprocessing((48, 64), (48, 64), *IMAGENET, "nearest").fit(as_tensor(image))
    assert torch.equal(fitted, as_tensor(image.resize((64, 48), Image.Resampling.NEAREST)))
    source = as_tensor(image)
    for y in range(48):
        for x in range(0, 64, 7):
            assert torch.equal(fitted[:, y, x], source[:, int((y + 0.5) * 243 / 48), int((x + 0.5) * 317 / 64)])


def test_normalising_subtracts_the_mean_and_divides_by_the_standard_deviation():
    pixels = torch.randint(0, 256, (2, 3, 4, 5), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    preprocessing = Preprocessing(4, (4, 5), *IMAGENET)
    floats = preprocessing.normalise(pixels)
    assert floats.dtype == torch.float32
    for image in range(2):
        for channel, (mean, std) in enumerate(zip(*IMAGENET, strict=True)):
            for value, result in zip(pixels[image, channel].flatten(), floats[image, channel].flatten(), strict=True):
                assert float(result) == pytest.approx((int(value) / 255 - mean) / std, abs=1e-5)


@pytest.mark.parametrize(("height", "width"), [(40, 60), (60, 40), (50, 50)])
def test_a_number_resizes_the_shorter_side_and_a_pair_both(height, width):
    stripe = torch.zeros(3, height, width, dtype=torch.uint8)
    shorter = Preprocessing(20, (20, 20), *IMAGENET)
    assert shorter.fit(stripe).shape == (3, 20, 20)
    whole = Preprocessing(20, (20 * height // min(height, width), 20 * width // min(height, width)), *IMAGENET)
    stripe[:] = 200
    assert (whole.fit(stripe) == 200).all()  # a crop beyond the resized image would be padded with zeros
    assert Preprocessing((16, 24), (16, 24), *IMAGENET).fit(stripe).shape == (3, 16, 24)
    assert (Preprocessing((16, 24), (16, 24), *IMAGENET).fit(stripe) == 200).all()


def test_the_crop_is_taken_from_the_centre():
    image = torch.randint(0, 256, (3, 10, 14), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    cropped = Preprocessing((10, 14), (6, 4), *IMAGENET).fit(image)
    assert torch.equal(cropped, image[:, 2:8, 5:9])


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic", "lanczos"])
def test_a_batch_is_fitted_as_its_images_one_by_one(interpolation):
    preprocessing = Preprocessing(24, (20, 22), *IMAGENET, interpolation)
    batch = torch.stack([as_tensor(photo(41, 53, seed)) for seed in range(4)])
    together = preprocessing.fit(batch)
    assert together.dtype == torch.uint8
    assert together.shape == (4, 3, 20, 22)
    for image, fitted in zip(batch, together, strict=True):
        assert torch.equal(preprocessing.fit(image), fitted)


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic", "lanczos"])
def test_an_image_of_the_right_size_is_unchanged(interpolation):
    image = as_tensor(photo(20, 20))
    assert torch.equal(Preprocessing(20, (20, 20), *IMAGENET, interpolation).fit(image), image)


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic", "lanczos"])
def test_grey_images_keep_their_one_channel(interpolation):
    preprocessing = Preprocessing(12, (12, 12), (0.5,), (0.25,), interpolation)
    assert preprocessing.channels == 1
    fitted = preprocessing.fit(torch.full((2, 1, 30, 40), 128, dtype=torch.uint8))
    assert (fitted == 128).all()
    torch.testing.assert_close(preprocessing.normalise(fitted), torch.full((2, 1, 12, 12), (128 / 255 - 0.5) / 0.25))


@pytest.mark.parametrize("resize", [256, (256, 288)])
def test_preprocessing_round_trips_through_json(resize):
    preprocessing = Preprocessing(resize, (224, 240), *IMAGENET, "lanczos")
    assert Preprocessing.from_json(json.loads(json.dumps(preprocessing.to_json()))) == preprocessing


@pytest.mark.parametrize("mode", ["bicubic", "bilinear"])
@pytest.mark.parametrize(
    ("stored", "resize", "crop"),
    [((32, 32), 248, (224, 224)), ((90, 60), 40, (36, 33)), ((45, 31), (64, 60), (64, 60)), ((31, 45), 31, (31, 31))],
)
def test_resizing_by_matrix_products_agrees_with_torchs_kernel(
    mode: Interpolation, stored: tuple[int, int], resize: int | tuple[int, int], crop: tuple[int, int]
) -> None:
    images = torch.randint(0, 256, (2, 3, *stored), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    expected = Preprocessing(resize, crop, (0.5,) * 3, (0.5,) * 3, mode).fit(images)
    fitted = resize_and_crop(images, resize, crop, mode)
    assert fitted is not None
    assert fitted.shape == expected.shape
    difference = (fitted.int() - expected.int()).abs()
    assert int(difference.max()) <= 2
    assert float((difference > 0).float().mean()) < 0.02


def test_resizing_by_matrix_products_declines_a_crop_larger_than_the_image() -> None:
    assert resize_and_crop(torch.zeros(1, 3, 8, 8, dtype=torch.uint8), 8, (9, 8), "bilinear") is None
