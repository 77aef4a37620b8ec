"""A network as ONNX: written for any number of images, and asked through ONNX runtime."""

from __future__ import annotations

import importlib
import importlib.util

import torch
from torch import Tensor, nn

from famr.models.classifier import Classifier, logits_of

ONNX = ("onnx", "onnxruntime", "onnxscript")
"""What the export takes; famr does not ask for these packages."""
INPUT, OUTPUT = "images", "logits"


def onnx_missing() -> str | None:
    """Why nothing can be exported; None where all that it takes is installed."""
    missing = next((name for name in ONNX if importlib.util.find_spec(name) is None), None)
    return None if missing is None else f"{missing} is not installed"


class Logits(nn.Module):
    """The logits alone, whatever the library wraps around them."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        """Logits."""
        return logits_of(self.network(images))


def traceable(model: Classifier) -> tuple[Logits, tuple[Tensor], tuple[dict[int, torch.export.Dim]]]:
    """What both tracers take: a copy of the network on the CPU, two images, and that any number may come."""
    prepared = model.require_preprocessing()
    two = torch.zeros(2, prepared.channels, *prepared.crop)
    return Logits(model.copy().module.cpu()).eval(), (two,), ({0: torch.export.Dim.DYNAMIC},)


def as_onnx(model: Classifier) -> bytes:
    """The program, without the lines of code it came from, which tell where they lie on this machine."""
    network, two, any_number = traceable(model)
    program = torch.onnx.export(
        network,
        two,
        dynamo=True,
        dynamic_shapes=any_number,
        verbose=False,
        input_names=[INPUT],
        output_names=[OUTPUT],
    )
    assert program is not None  # as no file was named
    proto = program.model_proto
    for part in (proto.graph, *proto.functions):
        for step in part.node:
            del step.metadata_props[:]
    written: bytes = proto.SerializeToString()
    return written


class Exported(nn.Module):
    """A network as ONNX runtime computes it."""

    def __init__(self, program: bytes) -> None:
        super().__init__()
        runtime = importlib.import_module("onnxruntime")
        self._session = runtime.InferenceSession(program, providers=["CPUExecutionProvider"])

    def forward(self, images: Tensor) -> Tensor:
        """Logits."""
        return torch.from_numpy(self._session.run([OUTPUT], {INPUT: images.cpu().numpy()})[0])
