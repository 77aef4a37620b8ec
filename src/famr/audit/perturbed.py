"""Recognition of slightly changed forget images: was the class forgotten, or only these very pixels?

Unlearning fits the forget images as they are stored. An image that is noisier, brighter, or moved by a pixel shows the
same thing to a person; a model that recognises it more often than a retrained one has not forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from famr.data import Images
from famr.data.loaders import EVALUATION_BATCH, Batch, pixel_batches
from famr.engine.devices import deterministic, pick_device
from famr.engine.inference import on_device, predict_batches
from famr.errors import RequestError
from famr.metrics.forgetting import correct
from famr.models import Classifier

Perturb = Callable[[Tensor, Tensor], Tensor]
"""Pixels from 0 to 255, (images, channels, height, width), and standard normal noise of that shape → new pixels."""


def shifted(right: int, down: int) -> Perturb:
    """Move the image; the edge is repeated.

    Args:
        right: Pixels; negative: to the left.
        down: Pixels; negative: up.

    >>> shifted(1, 0)(torch.tensor([[[[1.0, 2.0, 3.0]]]]), torch.zeros(1, 1, 1, 3))
    tensor([[[[1., 1., 2.]]]])
    """
    sides = (max(right, 0), max(-right, 0), max(down, 0), max(-down, 0))  # left, right, top, bottom

    def shift(pixels: Tensor, _noise: Tensor) -> Tensor:
        padded = F.pad(pixels, sides, mode="replicate")
        height, width = pixels.shape[-2:]
        return padded[..., sides[3] : sides[3] + height, sides[1] : sides[1] + width]

    return shift


def noisy(scale: float) -> Perturb:
    """Add Gaussian noise.

    Args:
        scale: Its standard deviation, of 255.
    """
    return lambda pixels, noise: (pixels + scale * noise).clamp(0, 255)


def brighter(factor: float) -> Perturb:
    """Multiply all pixels.

    Args:
        factor: Below 1 the image is darker.
    """
    return lambda pixels, _noise: (factor * pixels).clamp(0, 255)


def mirrored(pixels: Tensor, _noise: Tensor) -> Tensor:
    """Mirror the image, left to right.

    Args:
        pixels: (…, width).
    """
    return pixels.flip(-1)


PERTURBATIONS: dict[str, Perturb] = {
    "noise 8": noisy(8.0),
    "noise 16": noisy(16.0),
    "right": shifted(1, 0),
    "left": shifted(-1, 0),
    "down": shifted(0, 1),
    "up": shifted(0, -1),
    "two pixels": shifted(2, 2),
    "brighter": brighter(1.2),
    "darker": brighter(0.8),
    "mirrored": mirrored,
}
"""One copy of each image for each."""


@dataclass(frozen=True, eq=False)
class PerturbedHits:
    """How often changed copies of each forget image are put into its class.

    Attributes:
        hits: By perturbation, 1 where the copy is put into the class of the image, (images,).
    """

    hits: dict[str, Tensor]

    @property
    def share(self) -> Tensor:
        """The share of its copies that is put into the class of each image, (images,)."""
        return torch.stack(list(self.hits.values())).double().mean(dim=0)

    def to_json(self) -> dict[str, Any]:
        """Accuracy over all copies, and by perturbation."""
        by_perturbation = {name: float(hits.double().mean()) for name, hits in self.hits.items()}
        return {"forget_accuracy": float(self.share.mean()), "by_perturbation": by_perturbation}


def recognise_perturbed(
    model: Classifier, images: Images, *, seed: int = 0, device: str | None = None
) -> PerturbedHits:
    """Predict slightly changed copies of images; the same copies for every model.

    Args:
        model: Is not changed.
        images: Labelled forget images.
        seed: Of the noise.
        device: None: the best there is.

    Raises:
        RequestError: For images without classes.
    """
    torch_device = pick_device(device or "auto")
    if not images.labelled:
        raise RequestError("Recognition of changed images needs their classes.", fix="Put them into class folders.")
    preprocessing = model.require_preprocessing()
    stored = list(pixel_batches(images, preprocessing, EVALUATION_BATCH, torch_device, None))
    generator = torch.Generator().manual_seed(seed)

    def copies(perturb: Perturb) -> Iterator[Batch]:
        for batch in stored:
            noise = torch.randn(batch.images.shape, generator=generator).to(torch_device)
            yield batch._replace(images=preprocessing.normalise(perturb(batch.images.float(), noise)))

    hits = {}
    with deterministic(seed), on_device(model.module, torch_device):
        for name, perturb in PERTURBATIONS.items():
            predictions = predict_batches(model, copies(perturb), torch_device)
            hits[name] = correct(predictions.logits, predictions.targets)
    return PerturbedHits(hits)
