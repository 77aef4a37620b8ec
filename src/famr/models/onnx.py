"""A network as ONNX: written for any number of images, and computed by ONNX runtime; needs the extra `famr[onnx]`."""

from __future__ import annotations

import importlib.util

import torch
from torch import Tensor, nn

from famr.extras import require_extra
from famr.models.classifier import Classifier, logits_of

ONNX = ("onnx", "onnxruntime", "onnxscript")
"""Packages of the extra `famr[onnx]`."""
INPUT, OUTPUT = "images", "logits"


def onnx_missing() -> str | None:
    """Why ONNX is not available; None where it is."""
    missing = next((name for name in ONNX if importlib.util.find_spec(name) is None), None)
    return None if missing is None else f"{missing} is not installed"


class LogitsOnly(nn.Module):
    """A network that returns the logits alone.

    Args:
        network: Returns a tensor, or an object with `.logits`.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        """Logits, (batch, classes).

        Args:
            images: As the network takes them.
        """
        return logits_of(self.network(images))


def traceable(model: Classifier) -> tuple[LogitsOnly, tuple[Tensor], tuple[dict[int, torch.export.Dim]]]:
    """The arguments of torch's tracers for a network.

    Args:
        model: A classifier with preprocessing; it is not changed.

    Returns:
        A copy on the CPU in evaluation mode, two example images, and the dynamic batch dimension.
    """
    preprocessing = model.require_preprocessing()
    two_images = torch.zeros(2, preprocessing.channels, *preprocessing.crop)
    return LogitsOnly(model.copy().module.cpu()).eval(), (two_images,), ({0: torch.export.Dim.DYNAMIC},)


def to_onnx(model: Classifier) -> bytes:
    """A network as an ONNX file, without source lines, which would show paths of this machine.

    Args:
        model: A classifier with preprocessing.

    Raises:
        RequestError: A package of `famr[onnx]` is not installed.
    """
    for package in ("onnx", "onnxscript"):
        require_extra(package, "onnx")
    network, example, dynamic_shapes = traceable(model)
    program = torch.onnx.export(
        network,
        example,
        dynamo=True,
        dynamic_shapes=dynamic_shapes,
        verbose=False,
        input_names=[INPUT],
        output_names=[OUTPUT],
    )
    assert program is not None  # as no file was named
    proto = program.model_proto
    for part in (proto.graph, *proto.functions):
        for node in part.node:
            del node.metadata_props[:]
    content: bytes = proto.SerializeToString()
    return content


class OnnxNetwork(nn.Module):
    """A network computed by ONNX runtime on the CPU.

    Args:
        content: An ONNX file, from `to_onnx`.

    Raises:
        RequestError: onnxruntime is not installed.
    """

    def __init__(self, content: bytes) -> None:
        super().__init__()
        runtime = require_extra("onnxruntime", "onnx")
        self._session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])

    def forward(self, images: Tensor) -> Tensor:
        """Logits, (batch, classes), on the CPU.

        Args:
            images: As the network takes them.
        """
        return torch.from_numpy(self._session.run([OUTPUT], {INPUT: images.cpu().numpy()})[0])
