"""Accuracy after what is done to a model before deployment: int8 weights, half precision, export to ONNX.

Small edits can be lost in rounding: where every edit is below half a step of the int8 grid, the rounded weights are
those of the original, and what was forgotten is back.

Int8 here is a copy whose weights are rounded to 255 levels a row and computed with as floats; torch's own dynamic
quantisation is deprecated. Activations are not rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from famr.data import Images
from famr.data.loaders import EVALUATION_BATCH, image_batches
from famr.engine.devices import pick_device
from famr.engine.inference import predict, predict_batches
from famr.errors import NumericsError
from famr.metrics.forgetting import correct
from famr.metrics.predictions import Predictions
from famr.models import Classifier
from famr.models.classifier import logits_of
from famr.models.onnx import OnnxNetwork, onnx_missing, to_onnx

CONVERSIONS = ("int8", "bf16", "fp16", "onnx")
HALF_PRECISION = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, eq=False)
class ConversionHits:
    """Which images a model classifies correctly, 1 or 0 each: as it is, and after each conversion.

    Attributes:
        unconverted: (images,).
        converted: (images,) by conversion: int8, bf16, fp16, onnx.
        not_available: Why a conversion could not be tried, by its name.
    """

    unconverted: Tensor
    converted: dict[str, Tensor]
    not_available: dict[str, str] = field(default_factory=dict)

    def accuracy(self, conversion: str) -> float:
        """Accuracy after a conversion.

        Args:
            conversion: One of those in `converted`.
        """
        return float(self.converted[conversion].mean())

    def to_json(self) -> dict[str, Any]:
        """Accuracies, and the number of images they are of."""
        return {
            "as_it_is": float(self.unconverted.mean()),
            "changed": {conversion: self.accuracy(conversion) for conversion in self.converted},
            "not_available": self.not_available,
            "images": len(self.unconverted),
        }


def hits_after_conversion(
    model: Classifier, images: Images, *, conversions: Sequence[str] = CONVERSIONS, device: str | None = None
) -> ConversionHits:
    """Evaluate a model, and converted copies of it, on labelled images.

    Args:
        model: Is not changed.
        images: Such as the forget set.
        conversions: Some of `CONVERSIONS`.
        device: Of all but ONNX, which runs on the CPU; None: the best there is.
    """
    torch_device = pick_device(device or "auto")
    converted, missing = {}, {}
    for conversion in conversions:
        if conversion == "onnx" and (reason := onnx_missing()):
            missing[conversion] = f"not available: {reason}"
            continue
        try:
            converted[conversion] = _hits(_predict_converted(model, conversion, images, torch_device))
        except NumericsError as error:
            missing[conversion] = f"not available: {error.what}"
        except torch.onnx.OnnxExporterError:
            missing[conversion] = "not available: the network cannot be exported"
    return ConversionHits(_hits(predict(model, images, torch_device)), converted, missing)


def _predict_converted(model: Classifier, conversion: str, images: Images, device: torch.device) -> Predictions:
    if conversion == "onnx":
        converted, cpu = through_onnx(model), torch.device("cpu")  # where ONNX runtime always is
        batches = image_batches(images, converted.require_preprocessing(), EVALUATION_BATCH, cpu)
        return predict_batches(converted, batches(None), cpu)
    if conversion in HALF_PRECISION:
        return predict(in_half_precision(model, HALF_PRECISION[conversion]), images, device)
    return predict(quantised(model), images, device)


def _hits(predictions: Predictions) -> Tensor:
    return correct(predictions.logits, predictions.targets)


def round_to_grid(weight: Tensor, bits: int = 8) -> Tensor:
    """s · clamp(round(w / s), −m, m) with m = 2^(bits−1) − 1 and s = max|w| / m of each row.

    Args:
        weight: (rows, …).
        bits: Of the signed integers.

    >>> round_to_grid(torch.tensor([[1.27, 0.014, -0.016], [0.0, 0.0, 0.0]]))
    tensor([[ 1.2700,  0.0100, -0.0200],
            [ 0.0000,  0.0000,  0.0000]])
    """
    largest = 2 ** (bits - 1) - 1
    rows = weight.detach().flatten(1)
    scale = (rows.abs().amax(dim=1, keepdim=True) / largest).clamp(min=torch.finfo(rows.dtype).tiny)
    on_grid: Tensor = (rows / scale).round().clamp(-largest, largest) * scale
    return on_grid.reshape(weight.shape)


def quantised(model: Classifier, bits: int = 8) -> Classifier:
    """A copy with rounded weight matrices and filters; biases, norms and tokens stay as they are.

    Args:
        model: Is not changed.
        bits: As in `round_to_grid`.
    """
    converted = model.copy()
    with torch.no_grad():
        for name, parameter in converted.module.named_parameters():
            if parameter.ndim >= 2 and name.endswith("weight"):
                parameter.copy_(round_to_grid(parameter, bits))
    return converted


class HalfPrecision(nn.Module):
    """A network with weights and arithmetic in half precision, that takes and returns float32.

    Args:
        network: Is converted in place.
        dtype: torch.bfloat16 or torch.float16.
    """

    def __init__(self, network: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.network = network.to(dtype)
        self._dtype = dtype

    def forward(self, images: Tensor) -> Tensor:
        """Logits in float32.

        Args:
            images: (batch, channels, height, width).

        Raises:
            NumericsError: On overflow.
        """
        logits = logits_of(self.network(images.to(self._dtype))).float()
        if not bool(torch.isfinite(logits).all()):
            raise NumericsError(f"the network overflows in {str(self._dtype).removeprefix('torch.')}")
        return logits


def in_half_precision(model: Classifier, dtype: torch.dtype) -> Classifier:
    """A copy in bf16 or fp16.

    Args:
        model: Is not changed.
        dtype: torch.bfloat16 or torch.float16.
    """
    return replace(model, module=HalfPrecision(model.copy().module, dtype))


def through_onnx(model: Classifier) -> Classifier:
    """The model exported to ONNX and run by ONNX runtime.

    Args:
        model: Is not changed.
    """
    return replace(model, module=OnnxNetwork(to_onnx(model)))
