"""Weights in files: read safely, checked completely, written with ordinary permissions."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from famr.errors import CheckpointError
from famr.models.headers import check_archive, check_safetensors, is_lfs_pointer

PICKLE_SUFFIXES = {".bin", ".ckpt", ".pt", ".pth"}
PICKLE = b"\x80"
"""First byte of a pickle."""
SHOWN = 10
"""Names that an error lists."""
UNPICKLE = Path(__file__).with_name("unpickle.py")
FETCH_AGAIN = "Fetch the file again. Accepted: .safetensors, and .pth that loads with weights_only=True."


def read_weights(path: Path) -> dict[str, Tensor]:
    """Tensors by name.

    Args:
        path: A `.safetensors`, or a `.pth` that holds nothing but tensors.

    Raises:
        CheckpointError: The file is missing, damaged, of another kind, or contains NaN or infinity.
    """
    if not path.is_file():
        raise CheckpointError("There is no such weights file.", where=str(path), fix="Check the path.")
    refuse_lfs_pointer(path)
    if path.suffix not in {".safetensors", *PICKLE_SUFFIXES}:
        raise CheckpointError(
            f"Weights files end in .safetensors or {', '.join(sorted(PICKLE_SUFFIXES))}, not {path.suffix!r}.",
            where=str(path),
            fix="Convert the file to .safetensors.",
        )
    try:
        tensors = _read_safetensors(path) if path.suffix == ".safetensors" else _read_pickle(path)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(
            f"The weights file is damaged or of another kind: {str(error).splitlines()[0] if str(error) else error!r}.",
            where=str(path),
            fix=FETCH_AGAIN,
        ) from error
    require_finite_weights(tensors, str(path))
    return tensors


def refuse_lfs_pointer(path: Path) -> None:
    """Name a pointer of Git LFS as what it is; a library would only call it damaged.

    Args:
        path: Of the file.

    Raises:
        CheckpointError: It is a pointer.
    """
    if is_lfs_pointer(path):
        raise CheckpointError("This is a Git LFS pointer, not the weights.", where=str(path), fix="Run `git lfs pull`.")


def require_finite_weights(tensors: Mapping[str, Tensor], where: str) -> None:
    """Refuse weights that are NaN or infinite; a run would fail on them later and be blamed.

    Args:
        tensors: Weights by name.
        where: Their file or model, for the error.

    Raises:
        CheckpointError: Names the first such tensor.
    """
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise CheckpointError(
                "The weights contain NaN or infinity.", where=f"{where}: {name}", fix="Use an intact checkpoint."
            )


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    check_safetensors(path)
    return dict(load_file(path))


def _read_pickle(path: Path) -> dict[str, Tensor]:
    """Have another process unpack a pickle in limited memory and return safetensors."""
    from safetensors.torch import load

    with path.open("rb") as file:
        start = file.read(2)
    if start == b"PK" or zipfile.is_zipfile(path):
        check_archive(path)
    elif start[:1] != PICKLE:  # torch's format before 2020
        raise ValueError("it is neither an archive nor a pickle")
    program = [sys.executable, "-P", str(UNPICKLE), str(path.resolve())]
    done = subprocess.run(program, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    if done.returncode == 1:
        raise ValueError(done.stdout.decode("utf-8", "replace") or "it cannot be read")
    if done.returncode != 0:
        raise ValueError(f"reading it ended with code {done.returncode}, as when memory runs out")
    tensors = load(done.stdout)
    return {name.removeprefix("module.").removeprefix("_orig_mod."): tensor for name, tensor in tensors.items()}


def load_weights(module: nn.Module, tensors: Mapping[str, Tensor], where: str) -> None:
    """Copy tensors into a network; no weight of it stays random.

    Args:
        module: The network; changed in place.
        tensors: Weights by name.
        where: Their file or model, for the errors.

    Raises:
        CheckpointError: A tensor is missing, unexpected or of another shape.
    """
    expected = module.state_dict()
    # BatchNorm's step counter is missing in older checkpoints and does not affect any output
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
            where=f"{where}: missing {_first_names(missing)}; unexpected {_first_names(unexpected)}",
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


def _first_names(names: list[str]) -> str:
    if not names:
        return "none"
    return ", ".join(names[:SHOWN]) + (f" … ({len(names)} in all)" if len(names) > SHOWN else "")


def save_weights(module: nn.Module, path: Path) -> None:
    """Write all parameters and buffers as safetensors.

    Args:
        module: The network, or its wrapper by torch.compile.
        path: Of the file.
    """
    from safetensors.torch import save_model

    save_model(getattr(module, "_orig_mod", module), str(path), metadata={"format": "pt"})  # without torch.compile
    apply_umask(path)


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write tensors as safetensors.

    Args:
        tensors: By name.
        path: Of the file.
    """
    from safetensors.torch import save_file

    copies = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}  # unshared
    save_file(copies, str(path))
    apply_umask(path)


def apply_umask(path: Path) -> None:
    """Give a file of safetensors, which writes it with mode 0600, the permissions of any other new file.

    Args:
        path: Of the file.
    """
    umask = os.umask(0)
    os.umask(umask)
    path.chmod(0o666 & ~umask)


def state_digest(module: nn.Module) -> str:
    """SHA-256 over the name, type, shape and bytes of every parameter and buffer, sorted by name.

    Args:
        module: The network.

    Returns:
        The digest in hexadecimal.
    """
    return tensors_digest(module.state_dict())


def tensors_digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over the name, type, shape and bytes of every tensor, sorted by name.

    Args:
        tensors: By name.

    Returns:
        The digest in hexadecimal.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
