"""The steps of the attacks that train: Adam at a fixed rate, replayed on a GPU."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from famr.engine.devices import autocast
from famr.errors import NumericsError, RequestError
from famr.metrics.predictions import Predictions
from famr.models import Classifier
from famr.training.steps import GradientSteps, Loss


def adam_steps(parameters: Sequence[Tensor], learning_rate: float, device: torch.device) -> GradientSteps:
    """Steps of Adam at a fixed rate.

    Args:
        parameters: What is learned.
        learning_rate: η.
        device: The device of the parameters.
    """
    on_gpu = device.type == "cuda"
    rate = torch.tensor(learning_rate, device=device) if on_gpu else learning_rate
    optimiser = torch.optim.Adam(parameters, lr=rate, capturable=on_gpu)
    return GradientSteps(parameters, optimiser, lambda _step: learning_rate, device)


def label_loss(model: Classifier) -> Loss:
    """Cross-entropy of a model on images with their labels; on a GPU in bf16, as models are trained there.

    Args:
        model: On the device of the images.
    """
    device = next(model.module.parameters()).device

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        with autocast(device, "bf16" if device.type == "cuda" else "fp32"):
            logits = model.logits(images)
        return F.cross_entropy(logits.float(), labels)

    return loss


def require_finite(predictions: Predictions, attack: str) -> Predictions:
    """Predictions of a model that an attack has changed; they are returned.

    Args:
        predictions: After some steps.
        attack: Its name and the number of steps.

    Raises:
        NumericsError: Where one is not finite.
    """
    if not bool(torch.isfinite(predictions.logits).all()):
        raise NumericsError("An attack's training diverged.", where=attack, fix="Lower its learning rate.")
    return predictions


def require_positive(settings: Mapping[str, float], where: str) -> None:
    """Refuse settings of an attack that are not above 0.

    Args:
        settings: By name.
        where: Whose they are.

    Raises:
        RequestError: For the first that is 0, negative or not finite.
    """
    for name, value in settings.items():
        if not 0 < value < math.inf:
            raise RequestError(f"`{name}` must be above 0, got {value!r}.", where=where)
