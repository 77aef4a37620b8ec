"""A network as a file that runs without its Python code: ONNX, or an exported program of torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from famr.errors import CheckpointError, RequestError
from famr.extras import require_extra
from famr.models import Classifier
from famr.models.onnx import OnnxNetwork, to_onnx, traceable

FILES = {"onnx": "model.onnx", "torch-export": "model.pt2"}
"""The file of each format."""
ONNX_MODULES = ("onnx", "onnxruntime", "onnxscript")
LARGEST_ONNX = 2**31 - 2**20
"""Bytes of weights that fit one ONNX file, whose format ends at 2 GiB."""


def require_format(name: str) -> None:
    """Refuse, before any work, a format that is unknown or that cannot be written here.

    Args:
        name: A key of `FILES`.

    Raises:
        RequestError: The format is unknown, or the packages it needs are not installed.
    """
    if name not in FILES:
        raise RequestError(f"Unknown format {name!r}.", fix=f"Use one of: {', '.join(FILES)}.")
    if name == "onnx":
        for module in ONNX_MODULES:
            require_extra(module, "onnx")


def write_program(model: Classifier, file_format: str, path: Path) -> None:
    """Trace a network for any number of images and write it.

    Args:
        model: The model; it stays as it is.
        file_format: A key of `FILES`.
        path: The file to write.

    Raises:
        RequestError: The network is too large for one ONNX file.
        CheckpointError: The network cannot be traced.
    """
    tensors = model.module.state_dict().values()
    if file_format == "onnx" and sum(tensor.nbytes for tensor in tensors) > LARGEST_ONNX:
        raise RequestError("The network is too large for one ONNX file.", where=model.spec, fix="Use torch-export.")
    try:
        if file_format == "onnx":
            path.write_bytes(to_onnx(model))
        else:
            network, example, dynamic_shapes = traceable(model)
            traced = torch.export.export(network, example, dynamic_shapes=dynamic_shapes)
            for node in traced.graph.nodes:
                node.meta.pop("stack_trace", None)  # it names files of this machine
            torch.export.save(traced, path)
    except OSError:
        raise
    except Exception as error:  # the tracers raise types of their own
        raise CheckpointError(
            f"The network cannot be exported ({type(error).__name__}).",
            where=f"{model.architecture.library}:{model.architecture.name}",
            fix="Try the other format; nothing was written.",
        ) from error


def read_program(file_format: str, path: Path) -> nn.Module:
    """Load what `write_program` wrote, as a network from images to logits.

    Args:
        file_format: A key of `FILES`.
        path: The file.
    """
    if file_format == "onnx":
        return OnnxNetwork(path.read_bytes())
    return _Traced(torch.export.load(path).module())


class _Traced(nn.Module):
    """An exported program. It has no training mode, and raises where train() or eval() reaches it."""

    def __init__(self, program: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self._program = (program,)  # in a tuple it is not a submodule, which eval() would reach

    def forward(self, images: Tensor) -> Tensor:
        return self._program[0](images)
