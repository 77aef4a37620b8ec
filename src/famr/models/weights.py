"""Weights in and out of files: read safely, checked whole, written with ordinary permissions."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from famr.errors import CheckpointError

PICKLE_SUFFIXES = {".bin", ".ckpt", ".pt", ".pth"}
NESTED_KEYS = ("state_dict", "model", "model_state_dict")
SHOWN = 10


def read_weights(path: Path) -> dict[str, Tensor]:
    """Tensors by name from `.safetensors`, or from a `.pth` that holds nothing but tensors."""
    if not path.is_file():
        raise CheckpointError("There is no such weights file.", where=str(path), fix="Check the path.")
    if _is_lfs_pointer(path):
        raise CheckpointError("This is a Git LFS pointer, not the weights.", where=str(path), fix="Run `git lfs pull`.")
    try:
        tensors = _read(path)
    except CheckpointError:
        raise
    except Exception as error:  # safetensors, zip and pickle each raise their own types
        raise CheckpointError(
            f"The weights file is damaged or of another kind: {str(error).splitlines()[0] if str(error) else error!r}",
            where=str(path),
            fix="Fetch the file again. Accepted: .safetensors, and .pth that loads with weights_only=True.",
        ) from error
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise CheckpointError(
                "The weights contain NaN or infinity.",
                where=f"{path}: {name}",
                fix="Use an intact checkpoint.",
            )
    return tensors


def _read(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return dict(load_file(path))
    if path.suffix not in PICKLE_SUFFIXES:
        raise CheckpointError(
            f"Weights files end in .safetensors or {', '.join(sorted(PICKLE_SUFFIXES))}, not {path.suffix!r}.",
            where=str(path),
            fix="Convert the file to .safetensors.",
        )
    loaded = torch.load(path, map_location="cpu", weights_only=True)
    for key in NESTED_KEYS:
        if isinstance(loaded, dict) and isinstance(loaded.get(key), dict):
            loaded = loaded[key]
    if not isinstance(loaded, dict) or not all(isinstance(value, Tensor) for value in loaded.values()):
        raise CheckpointError(
            "The file does not hold a dictionary of tensors.", where=str(path), fix="Save model.state_dict()."
        )
    return {name.removeprefix("module.").removeprefix("_orig_mod."): tensor for name, tensor in loaded.items()}


def _is_lfs_pointer(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(40).startswith(b"version https://git-lfs")


def load_weights(module: nn.Module, tensors: Mapping[str, Tensor], where: str) -> None:
    """Copy tensors into a network; every name and every shape must fit, nothing stays random."""
    expected = module.state_dict()
    # BatchNorm's step counter is absent from older checkpoints and plays no part in any output
    shared = {tensor.data_ptr() for name, tensor in expected.items() if name in tensors}  # tied weights have two names
    missing = [
        name
        for name, tensor in expected.items()
        if name not in tensors and not name.endswith("num_batches_tracked") and tensor.data_ptr() not in shared
    ]
    unexpected = [name for name in tensors if name not in expected]
    if missing or unexpected:
        raise CheckpointError(
            f"The weights do not fit the architecture: {len(missing)} tensors are missing, "
            f"{len(unexpected)} are unexpected.",
            where=f"{where}: missing {_some(missing)}; unexpected {_some(unexpected)}",
            fix="Name the architecture these weights were trained with.",
        )
    for name, tensor in tensors.items():
        if tensor.shape != expected[name].shape:
            raise CheckpointError(
                f"A tensor has another shape: expected {tuple(expected[name].shape)}, got {tuple(tensor.shape)}.",
                where=f"{where}: {name}",
                fix="Name the architecture (and its arguments) these weights were trained with.",
            )
    module.load_state_dict(dict(tensors), strict=False)


def _some(names: list[str]) -> str:
    if not names:
        return "none"
    return ", ".join(names[:SHOWN]) + (f" … ({len(names)} in all)" if len(names) > SHOWN else "")


def save_weights(module: nn.Module, path: Path) -> None:
    """Write all parameters and buffers as safetensors."""
    from safetensors.torch import save_model

    save_model(getattr(module, "_orig_mod", module), str(path), metadata={"format": "pt"})  # not torch.compile's shell
    share_as_umask_says(path)


def share_as_umask_says(path: Path) -> None:
    """safetensors makes its files private (0600); give them the permissions every other file gets."""
    umask = os.umask(0)
    os.umask(umask)
    path.chmod(0o666 & ~umask)


def state_digest(module: nn.Module) -> str:
    """SHA-256 over the name, type, shape and bytes of every parameter and buffer, sorted by name."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
