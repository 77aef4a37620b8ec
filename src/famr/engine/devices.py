"""Devices, precision, determinism."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Literal

import torch

from famr.errors import RequestError

Precision = Literal["fp32", "bf16"]


def pick_device(name: str = "auto") -> torch.device:
    """A device by name, or the best available: CUDA, then Apple's MPS, then the CPU.

    Args:
        name: `auto`, `cpu`, `cuda`, `cuda:N` or `mps`.

    Raises:
        RequestError: The name is unknown, or this machine has no such device.
    """
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


def autocast(device: torch.device, precision: Precision) -> AbstractContextManager[object]:
    """Autocast to bf16; weights, gradients and losses stay in float32.

    Casts of weights are not cached: within another autocast the cache would outlive a step, and with it old weights.

    Args:
        device: Where the network computes.
        precision: `fp32` changes nothing.
    """
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False)


@contextmanager
def tf32_matmul() -> Iterator[None]:
    """On CUDA, fp32 matrix products by tensor cores (TF32: 10 bits of mantissa); the setting returns on exit."""
    try:
        before = torch.get_float32_matmul_precision()
    except RuntimeError:  # the caller chose differently for two backends; that choice stays
        yield
        return
    backends = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)  # type: ignore[attr-defined]
    precisions = [backend.fp32_precision for backend in backends]  # "highest" is more than one state of these
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
        for backend, precision in zip(backends, precisions, strict=True):
            backend.fp32_precision = precision


def ready_attention(device: torch.device) -> AbstractContextManager[object]:
    """Attention kernels that need no planning, on CUDA.

    cuDNN's are a little faster once planned, which takes a tenth of a second or more for each batch size: runs of some
    dozen steps do not win that back.

    Args:
        device: Where attention is computed; elsewhere than on CUDA nothing changes.
    """
    if device.type != "cuda":
        return nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    kernels: AbstractContextManager[object] = sdpa_kernel(
        [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    )
    return kernels


def single_thread() -> AbstractContextManager[object]:
    """One thread for BLAS and OpenMP: small problems are slower with more threads than cores."""
    from threadpoolctl import threadpool_limits

    limits: AbstractContextManager[object] = threadpool_limits(limits=1)
    return limits


CUBLAS = "CUBLAS_WORKSPACE_CONFIG"
"""The environment variable that makes cuBLAS deterministic."""
ATTENTION_VARIES = ".*defaults to a non-deterministic algorithm"
"""What torch warns of once where a gradient goes through attention on CUDA: its rounding differs from run to run."""


@contextmanager
def deterministic(seed: int) -> Iterator[None]:
    """Seed torch and use deterministic kernels; the caller's random state, flags and environment return on exit.

    The gradient of attention on CUDA keeps its fast kernels, whose rounding differs from run to run (docs/speed.md).

    Args:
        seed: Of every random draw inside that has no generator of its own.
    """
    workspace = os.environ.get(CUBLAS)
    before = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    filled: bool = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    efficient = torch.backends.cuda.mem_efficient_sdp_enabled()  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", ATTENTION_VARIES, UserWarning)
        torch.manual_seed(seed)
        os.environ.setdefault(CUBLAS, ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
        _fill_memory(False)  # no code here reads memory that it did not write
        torch.backends.cuda.enable_mem_efficient_sdp(False)  # its gradient differs from call to call
        try:
            yield
        finally:
            torch.backends.cuda.enable_mem_efficient_sdp(efficient)
            _fill_memory(filled)
            torch.use_deterministic_algorithms(before, warn_only=warn_only)
            if workspace is None:
                os.environ.pop(CUBLAS, None)


def _fill_memory(fill: bool) -> None:
    torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]
