"""CUDA graph replay without CUDA: a stand-in that records a step's kernels on the CPU and replays them.

As in a CUDA graph, a recorded step runs no Python, its kernels read and write the memory that they were recorded with,
and recording runs none of them. A step that reads anything else that changes (a Python number, a tensor that another
one replaces) gives another result than when it is called, which is what the tests that use this look for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from famr.engine import graphs

NOT_CAPTURABLE = "operation not permitted when stream is capturing"
WAITS = ("_local_scalar_dense", "nonzero")
"""Kernels for whose result the host waits."""


class _Kernels(TorchDispatchMode):
    """Notes each kernel with the tensors it was called on; undoes what the kernels wrote to earlier tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []
        self._created: set[int] = set()
        self._before: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(func.overloadpacket.__name__ == name for name in WAITS):
            raise RuntimeError(NOT_CAPTURABLE)
        written = [
            value
            for argument, value in zip(func._schema.arguments, args, strict=False)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        for tensor in tree_leaves(written):
            memory = tensor.untyped_storage().data_ptr()
            if memory not in self._created and memory not in self._before:
                self._before[memory] = (tensor, tensor.clone())
        result = func(*args, **kwargs)
        if not _is_view(func):
            self._created |= {t.untyped_storage().data_ptr() for t in _tensors(result)} - self._before.keys()
        self.calls.append((func, args, kwargs, result))
        return result

    @torch.no_grad()
    def undo(self) -> None:
        for tensor, before in self._before.values():
            tensor.copy_(before)


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def _is_view(func: Any) -> bool:
    return any(returned.alias_info is not None for returned in func._schema.returns)


class CpuRecording:
    """In place of `graphs.Recording`."""

    made = 0
    """Recordings so far."""

    def __init__(self, step: Callable[..., Tensor], inputs: Sequence[Tensor], _device: torch.device) -> None:
        self._buffers = [tensor.clone() for tensor in inputs]
        self._kernels = _Kernels()
        try:
            with self._kernels:
                self._result = step(*self._buffers)
        finally:
            self._kernels.undo()
        CpuRecording.made += 1

    @torch.no_grad()
    def replay(self, inputs: Sequence[Tensor]) -> Tensor:
        for buffer, tensor in zip(self._buffers, inputs, strict=True):
            buffer.copy_(tensor)
        for func, args, kwargs, result in self._kernels.calls:
            if _is_view(func) and not func._schema.is_mutable:
                continue  # the same memory
            again = func(*args, **kwargs)
            if not func._schema.is_mutable:
                for before, now in zip(_tensors(result), _tensors(again), strict=True):
                    before.copy_(now)
        return self._result.clone()


def record_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `CudaEngine` work on a CPU, and let steps there be recorded by the stand-in."""
    monkeypatch.setattr(torch.cuda, "device", lambda _device: nullcontext())
    monkeypatch.setattr(CpuRecording, "made", 0)
    monkeypatch.setattr(graphs, "Recording", CpuRecording)
    monkeypatch.setattr(graphs, "can_record", lambda _device: True)
    monkeypatch.setattr(graphs, "side_stream", lambda _device: nullcontext())
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda _mode: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _device: None)
