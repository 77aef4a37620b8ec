"""What a method costs: wall-clock seconds and peak GPU memory."""

from __future__ import annotations

import gc
import time
from types import TracebackType
from typing import Self

import torch


class CostMeter:
    """Measures the code inside a `with` block. It waits for the GPU before it reads the clock.

    Memory is counted beyond what is allocated on entry. Unreachable objects are collected first: freed inside the
    block, they would make the peak look smaller. Cached memory is released too: it includes that of earlier CUDA
    graphs, and torch releases none while it records a new one, but runs out of memory.

    Args:
        device: The device that computes.

    Attributes:
        peak_memory: Bytes on the GPU at most; None on other devices, and before the end.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._start, self._allocated = 0.0, 0
        self._end: float | None = None
        self.peak_memory: int | None = None

    def __enter__(self) -> Self:
        if self._device.type == "cuda":
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self._device)
            self._allocated = torch.cuda.memory_allocated(self._device)
        self._start = self._synchronised_time()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end = self._synchronised_time()
        if self._device.type == "cuda":
            self.peak_memory = torch.cuda.max_memory_allocated(self._device) - self._allocated

    @property
    def seconds(self) -> float:
        """Seconds so far; of the whole block after its end."""
        return (time.perf_counter() if self._end is None else self._end) - self._start

    def _synchronised_time(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()
