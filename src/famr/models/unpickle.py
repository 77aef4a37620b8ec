"""A separate program that reads an untrusted `.pth` in limited memory and writes its tensors as safetensors.

    python -P unpickle.py FILE

On standard output: the tensors, with exit code 0; or one line that says why not, with exit code 1. It imports neither
famr nor anything that the file names: `weights_only=True` builds tensors and plain values, no other objects.
"""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

NESTED_KEYS = ("state_dict", "model", "model_state_dict")
SPARE_MEMORY = 512 << 20
"""Bytes in addition to four times the file: the file, its tensors, a copy of them, and the output."""
SHOWN = 5


class RefusedError(Exception):
    """The file holds something other than tensors; the message says what."""


def convert() -> None:
    """Convert the file named on the command line; nothing else can write to standard output."""
    path = sys.argv[1]
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    import torch

    limit_memory(4 * Path(path).stat().st_size + SPARE_MEMORY)
    try:
        content = tensors_in(path)
    except RefusedError as error:
        content, code = str(error).encode(), 1
    except MemoryError:
        content, code = b"it needs more memory than its size explains", 1
    except Exception as error:  # zip, pickle and torch each raise their own types
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        unsafe = unsafe_names(torch, path)
        content = (f"it wants to run code: {unsafe}" if unsafe else f"it cannot be read ({reason})").encode()
        code = 1
    else:
        code = 0
    output.write(content)
    output.close()
    os._exit(code)


def limit_memory(more: int) -> None:
    """Limit how much the process may grow, on systems that report its size.

    Args:
        more: Bytes in addition to what it uses now.
    """
    statm = Path("/proc/self/statm")
    if statm.is_file():
        now = int(statm.read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + more, now + more))


def tensors_in(path: str) -> bytes:
    """The tensors of a file as safetensors.

    Args:
        path: Of the `.pth`.

    Raises:
        RefusedError: It does not hold dense tensors only, or a tensor claims more elements than it has bytes for.
    """
    import torch
    from safetensors.torch import save

    loaded = torch.load(path, map_location="cpu", weights_only=True)
    for key in NESTED_KEYS:
        if isinstance(loaded, dict) and isinstance(loaded.get(key), dict):
            loaded = loaded[key]
    if not isinstance(loaded, dict) or not all(isinstance(value, torch.Tensor) for value in loaded.values()):
        raise RefusedError("it does not hold a dictionary of tensors")
    for name, tensor in loaded.items():
        if tensor.layout != torch.strided or tensor.is_quantized:
            raise RefusedError(f"tensor {name!r} is sparse or quantised")
        if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise RefusedError(f"tensor {name!r} claims {tensor.numel():,} elements and has bytes for fewer")
    content: bytes = save({str(name): tensor.detach().clone().contiguous() for name, tensor in loaded.items()})
    return content


def unsafe_names(torch: object, path: str) -> str:
    """What a pickle would call besides tensors; empty where torch cannot tell.

    Args:
        torch: The module.
        path: Of the `.pth`.
    """
    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(path)  # type: ignore[attr-defined]
    except Exception:  # not an archive at all
        return ""
    return ", ".join(sorted(names)[:SHOWN])


if __name__ == "__main__":
    convert()
