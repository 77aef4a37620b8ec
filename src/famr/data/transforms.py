"""A checkpoint's preprocessing: resize, crop, scale and normalise, as its own library does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor

from famr.data.resizing import resize_and_crop
from famr.errors import RequestError

Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]


@dataclass(frozen=True)
class Preprocessing:
    """Resize, crop the centre, divide by 255, normalise.

    Attributes:
        resize: A number for the shorter side, a pair for height and width.
        crop: Height and width of the images that the model takes.
        mean: Mean of each channel, on a scale from 0 to 1; one number for grey images, three for colour.
        std: Standard deviation of each channel.
        interpolation: Of the resizing, as Pillow computes it.

    Raises:
        RequestError: A field has the wrong type or length.
    """

    resize: int | tuple[int, int]
    crop: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: Interpolation = "bicubic"

    def __post_init__(self) -> None:
        for name in ("crop", "mean", "std"):
            value = getattr(self, name)
            if not isinstance(value, (tuple, list)):
                raise RequestError(
                    f"`{name}` must be a tuple, got {value!r}.",
                    where="Preprocessing",
                    fix="Write one number per side or channel, such as (224, 224).",
                )
            object.__setattr__(self, name, tuple(value))
        if not isinstance(self.resize, int):
            object.__setattr__(self, "resize", tuple(self.resize))
        if len(self.mean) != len(self.std) or len(self.mean) not in (1, 3):
            raise RequestError(
                f"`mean` and `std` must have 1 or 3 numbers each, got {len(self.mean)} and {len(self.std)}.",
                where="Preprocessing",
                fix="Write one number for grey images, three for colour.",
            )

    @property
    def channels(self) -> int:
        """Number of colour channels: 1 or 3."""
        return len(self.mean)

    def fit(self, images: Tensor) -> Tensor:
        """Resize and crop images to the size that the model takes.

        Args:
            images: uint8, (…, channels, height, width).

        Returns:
            uint8, (…, channels, *crop).
        """
        from torchvision.transforms import InterpolationMode
        from torchvision.transforms.v2 import functional as F

        if images.is_cuda and self.interpolation in ("bilinear", "bicubic"):
            fitted = resize_and_crop(images, self.resize, self.crop, self.interpolation)
            if fitted is not None:
                return fitted
        size = [self.resize] if isinstance(self.resize, int) else list(self.resize)
        if self.interpolation == "lanczos":
            images = _resize_lanczos(images, size)
        else:
            name = "nearest-exact" if self.interpolation == "nearest" else self.interpolation  # Pillow's nearest
            images = F.resize(images, size, InterpolationMode(name), antialias=True)
        cropped: Tensor = F.center_crop(images, list(self.crop))
        return cropped

    def normalise(self, images: Tensor) -> Tensor:
        """(x/255 − mean)/std.

        Args:
            images: uint8, (…, channels, height, width).

        Returns:
            float32, of the same shape.
        """
        mean, std = _constants(self, images.device)
        return (images.float() / 255 - mean) / std

    def to_json(self) -> dict[str, Any]:
        """As stored beside the weights."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Preprocessing:
        """The inverse of `to_json`.

        Args:
            values: What `to_json` returned.

        >>> p = Preprocessing(256, (224, 224), (0.5,) * 3, (0.5,) * 3)
        >>> Preprocessing.from_json(p.to_json()) == p
        True
        """
        resize = values["resize"]
        return cls(
            resize=resize if isinstance(resize, int) else (int(resize[0]), int(resize[1])),
            crop=(int(values["crop"][0]), int(values["crop"][1])),
            mean=tuple(values["mean"]),
            std=tuple(values["std"]),
            interpolation=values["interpolation"],
        )


@lru_cache(maxsize=16)
def _constants(preprocessing: Preprocessing, device: torch.device) -> tuple[Tensor, Tensor]:
    """Mean and std, copied to the device once: a copy in each step would make the GPU wait."""
    mean, std = torch.tensor(preprocessing.mean), torch.tensor(preprocessing.std)
    return mean[:, None, None].to(device), std[:, None, None].to(device)


def _resize_lanczos(images: Tensor, size: list[int]) -> Tensor:
    """By Pillow, image by image: torch has no Lanczos kernel."""
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms.v2 import functional as F

    flat = images.cpu().reshape(-1, *images.shape[-3:])
    resized = [F.resize(F.to_pil_image(image), size, InterpolationMode.LANCZOS) for image in flat]
    pixels = torch.stack([F.pil_to_tensor(image) for image in resized])
    return pixels.reshape(*images.shape[:-2], *pixels.shape[-2:]).to(images.device)
