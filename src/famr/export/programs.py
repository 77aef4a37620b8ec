"""A network as a file that runs without its Python code: ONNX, or an exported program of torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from famr.audits.survival import Exported, onnx_missing
from famr.errors import CheckpointError, RequestError
from famr.models import Classifier
from famr.models.classifier import logits_of

FILES = {"onnx": "model.onnx", "torch-export": "model.pt2"}
"""The file of each format."""
INPUT, OUTPUT = "images", "logits"
LARGEST_ONNX = 2**31 - 2**20
"""Bytes of weights that fit one ONNX file, whose format ends at 2 GiB."""


def require_format(name: str) -> None:
    """Refuse, before any work, a format that is unknown or that cannot be written here."""
    if name not in FILES:
        raise RequestError(f"Unknown format {name!r}.", fix=f"Use one of: {', '.join(FILES)}.")
    if name == "onnx" and (reason := onnx_missing()):
        raise RequestError(f"ONNX is not available: {reason}.", fix="pip install onnx onnxruntime onnxscript")


def write_program(model: Classifier, form: str, path: Path) -> None:
    """Trace the network for any number of images and write it."""
    network = _Logits(model.copy().module.cpu()).eval()
    prepared = model.prepared_by()
    two = torch.zeros(2, prepared.channels, *prepared.crop)
    any_number = ({0: torch.export.Dim.DYNAMIC},)
    if form == "onnx" and sum(tensor.nbytes for tensor in network.state_dict().values()) > LARGEST_ONNX:
        raise RequestError("The network is too large for one ONNX file.", where=model.spec, fix="Use torch-export.")
    try:
        if form == "onnx":
            program = torch.onnx.export(
                network,
                (two,),
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
                    del step.metadata_props[:]  # lines of code, with where they lie on this machine
            path.write_bytes(proto.SerializeToString())
        else:
            traced = torch.export.export(network, (two,), dynamic_shapes=any_number)
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
        return Exported(path.read_bytes())
    return _Traced(torch.export.load(path).module())


class _Logits(nn.Module):
    """The logits alone, whatever the library wraps around them."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        return logits_of(self.network(images))


class _Traced(nn.Module):
    """An exported program; it has no training mode, and minds being told of one."""

    def __init__(self, program: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self._program = (program,)  # not a part that eval() would reach

    def forward(self, images: Tensor) -> Tensor:
        return self._program[0](images)
