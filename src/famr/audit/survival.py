"""Does forgetting survive what is done to a model before it is used: int8 weights, half precision, export to ONNX?

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

CHANGES = ("int8", "bf16", "fp16", "onnx")


@dataclass(frozen=True, eq=False)
class Survival:
    """Which of the images a model gets right, 1 or 0 each: as it is, and after each change."""

    as_it_is: Tensor
    changed: dict[str, Tensor]
    """By change: int8, bf16, fp16, onnx."""
    not_available: dict[str, str] = field(default_factory=dict)
    """Why a change could not be tried, by its name."""

    def accuracy(self, change: str) -> float:
        """After a change."""
        return float(self.changed[change].mean())

    def to_json(self) -> dict[str, Any]:
        """Accuracies, and of how many images."""
        return {
            "as_it_is": float(self.as_it_is.mean()),
            "changed": {change: self.accuracy(change) for change in self.changed},
            "not_available": self.not_available,
            "images": len(self.as_it_is),
        }


def survival(
    model: Classifier, images: Images, *, changes: Sequence[str] = CHANGES, device: str | None = None
) -> Survival:
    """Ask a model, and copies of it in int8, bf16, fp16 and ONNX, about labelled images, such as the forget set."""
    place = pick_device(device or "auto")
    changed, missing = {}, {}
    for change in changes:
        if change == "onnx" and (reason := onnx_missing()):
            missing[change] = f"not available: {reason}"
            continue
        try:
            changed[change] = _asked(model, change, images, place)
        except NumericsError as error:
            missing[change] = f"not available: {error.what}"
        except torch.onnx.OnnxExporterError:
            missing[change] = "not available: the network cannot be exported"
    return Survival(_marks(predict(model, images, place)), changed, missing)


def _asked(model: Classifier, change: str, images: Images, device: torch.device) -> Tensor:
    """What a changed copy gets right."""
    if change == "onnx":
        copy, cpu = exported(model), torch.device("cpu")  # where ONNX runtime always is
        return _marks(
            predict_batches(copy, image_batches(images, copy.require_preprocessing(), EVALUATION_BATCH, cpu)(None), cpu)
        )
    kinds = {"bf16": torch.bfloat16, "fp16": torch.float16}
    return _marks(predict(halved(model, kinds[change]) if change in kinds else quantised(model), images, device))


def _marks(said: Predictions) -> Tensor:
    return correct(said.logits, said.targets)


def rounded(weight: Tensor, bits: int = 8) -> Tensor:
    """Each row on its own grid of 2^bits − 1 levels around 0, the largest weight at the end of it.

    >>> rounded(torch.tensor([[1.27, 0.014, -0.016], [0.0, 0.0, 0.0]]))
    tensor([[ 1.2700,  0.0100, -0.0200],
            [ 0.0000,  0.0000,  0.0000]])
    """
    most = 2 ** (bits - 1) - 1
    rows = weight.detach().flatten(1)
    scale = (rows.abs().amax(dim=1, keepdim=True) / most).clamp(min=torch.finfo(rows.dtype).tiny)
    on_grid: Tensor = (rows / scale).round().clamp(-most, most) * scale
    return on_grid.reshape(weight.shape)


def quantised(model: Classifier, bits: int = 8) -> Classifier:
    """A copy whose weight matrices and filters are rounded, row by row; biases, scales and tokens stay as they are."""
    changed = model.copy()
    with torch.no_grad():
        for name, parameter in changed.module.named_parameters():
            if parameter.ndim >= 2 and name.endswith("weight"):
                parameter.copy_(rounded(parameter, bits))
    return changed


class Half(nn.Module):
    """A network with weights and arithmetic in half precision, that takes and returns floats."""

    def __init__(self, network: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.network = network.to(dtype)
        self._dtype = dtype

    def forward(self, images: Tensor) -> Tensor:
        """Logits as floats; an overflow is an error, not an answer."""
        logits = logits_of(self.network(images.to(self._dtype))).float()
        if not bool(torch.isfinite(logits).all()):
            raise NumericsError(f"the network overflows in {str(self._dtype).removeprefix('torch.')}")
        return logits


def halved(model: Classifier, dtype: torch.dtype) -> Classifier:
    """A copy in bf16 or fp16."""
    return replace(model, module=Half(model.copy().module, dtype))


def exported(model: Classifier) -> Classifier:
    """The model written as ONNX and read again."""
    return replace(model, module=OnnxNetwork(to_onnx(model)))
