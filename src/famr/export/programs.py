"""A network as a file that runs without its Python code: ONNX, or an exported program of torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from famr.errors import CheckpointError, RequestError
from famr.models import Classifier
from famr.models.onnx import OnnxNetwork, onnx_missing, to_onnx, traceable

FILES = {"onnx": "model.onnx", "torch-export": "model.pt2"}
"""The file of each format."""
LARGEST_ONNX = 2**31 - 2**20
"""Bytes of weights that fit one ONNX file, whose format ends at 2 GiB."""


def require_format(name: str) -> None:
    """Refuse, before any work, a format that is unknown or that cannot be written here."""
    if name not in FILES:
        raise RequestError(f"Unknown format {name!r}.", fix=f"Use one of: {', '.join(FILES)}.")
    if name == "onnx" and (reason := onnx_missing()):
        raise RequestError(f"ONNX is not available: {reason}.", fix="pip install 'famr[onnx]'")


def write_program(model: Classifier, form: str, path: Path) -> None:
    """Trace the network for any number of images and write it."""
    tensors = model.module.state_dict().values()
    if form == "onnx" and sum(tensor.nbytes for tensor in tensors) > LARGEST_ONNX:
        raise RequestError("The network is too large for one ONNX file.", where=model.spec, fix="Use torch-export.")
    try:
        if form == "onnx":
            path.write_bytes(to_onnx(model))
        else:
            network, two, any_number = traceable(model)
            traced = torch.export.export(network, two, dynamic_shapes=any_number)
            for node in traced.graph.nodes:
                node.meta.pop("stack_trace", None)
            torch.export.save(traced, path)
    except OSError:
        raise
    except Exception as error:  # the tracers raise types of their own
        raise CheckpointError(
            f"The network cannot be exported ({type(error).__name__}).",
            where=f"{model.architecture.library}:{model.architecture.name}",
            fix="Try the other format; nothing was written.",
        ) from error


def read_program(form: str, path: Path) -> nn.Module:
    """What was written, ready to be asked."""
    if form == "onnx":
        return OnnxNetwork(path.read_bytes())
    return _Traced(torch.export.load(path).module())


class _Traced(nn.Module):
    """An exported program; it has no training mode, and minds being told of one."""

    def __init__(self, program: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self._program = (program,)  # not a part that eval() would reach

    def forward(self, images: Tensor) -> Tensor:
        return self._program[0](images)
