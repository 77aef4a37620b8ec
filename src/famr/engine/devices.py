"""Where and how precisely to compute, and how to get the same result twice."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Literal

import torch

from famr.errors import RequestError

Precision = Literal["fp32", "bf16"]


def pick_device(name: str = "auto") -> torch.device:
    """The device asked for, or the best there is: CUDA, then Apple's MPS, then the CPU."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise RequestError(f"Unknown device {name!r}.", fix="Use auto, cpu, cuda or mps.") from error
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not available.get(device.type, False) or (device.index or 0) >= max(1, torch.cuda.device_count()):
        raise RequestError(f"This machine has no device {name!r}.", fix="Use --device auto or --device cpu.")
    return device


def with_index(device: torch.device) -> torch.device:
    """The same device with its number: `cuda` is the current one of them."""
    if device.type != "cuda":
        return device
    return torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)


def autocast(device: torch.device, precision: Precision) -> AbstractContextManager[object]:
    """bf16 where it was chosen; weights, gradients and losses stay in float32."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


@contextmanager
def tf32_matmul() -> Iterator[None]:
    """On CUDA, fp32 matrix products by tensor cores, which round what is multiplied to 10 bits, as cuDNN's do."""
    try:
        before = torch.get_float32_matmul_precision()
    except RuntimeError:  # somebody has chosen for one backend and not for another: so it stays
        yield
        return
    named = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)  # type: ignore[attr-defined]
    each = [backend.fp32_precision for backend in named]  # "highest" is more than one state of these
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
        for backend, own in zip(named, each, strict=True):
            backend.fp32_precision = own


_ASKING = threading.Lock()
_asking, _planned = 0, True


@contextmanager
def unplanned_attention() -> Iterator[None]:
    """On CUDA, attention by kernels that are ready at once, in whatever thread.

    cuDNN's, which torch prefers, are a little quicker once they have a plan; it takes a tenth of a second or more to
    draw one up for each size of batch, which pays where gradients are taken many times.
    """
    global _asking, _planned
    with _ASKING:
        if not _asking:
            _planned = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
            torch.backends.cuda.enable_cudnn_sdp(False)
        _asking += 1
    try:
        yield
    finally:
        with _ASKING:
            _asking -= 1
            if not _asking:
                torch.backends.cuda.enable_cudnn_sdp(_planned)


def single_thread() -> AbstractContextManager[object]:
    """Small problems on the CPU: where a library takes more threads than there are cores they wait for each other."""
    from threadpoolctl import threadpool_limits

    limits: AbstractContextManager[object] = threadpool_limits(limits=1)
    return limits


@contextmanager
def deterministic(seed: int) -> Iterator[None]:
    """Everything inside draws from `seed` and uses deterministic kernels; the caller's state comes back after."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what cuBLAS needs to be deterministic
    before = torch.are_deterministic_algorithms_enabled()
    warned = torch.is_deterministic_algorithms_warn_only_enabled()
    filled = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    thrifty = torch.backends.cuda.mem_efficient_sdp_enabled()  # type: ignore[no-untyped-call]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        torch.use_deterministic_algorithms(True, warn_only=True)
        _fill_memory(False)  # nothing here reads memory it did not write
        torch.backends.cuda.enable_mem_efficient_sdp(False)  # attention whose gradient differs from call to call
        try:
            yield
        finally:
            torch.backends.cuda.enable_mem_efficient_sdp(thrifty)
            _fill_memory(filled)
            torch.use_deterministic_algorithms(before, warn_only=warned)


def _fill_memory(wanted: bool) -> None:
    torch.utils.deterministic.fill_uninitialized_memory = wanted  # type: ignore[attr-defined]
