"""CUDA's own compiler and driver, called directly: no header, no Python of torch's that has to be loaded first."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

Block = tuple[int, int, int]
Launch = Callable[[Block, Block, list[Any]], None]
"""Called with a grid, a block and the arguments."""


class Kernel:
    """A kernel on its device."""

    def __init__(self, function: ctypes.c_void_p) -> None:
        self._function = function

    def __call__(self, grid: Block, block: Block, given: list[Any]) -> None:
        """Launch it on the current stream; integers are passed as int, other numbers as double."""
        held = [_as_c(each) for each in given]
        places = (ctypes.c_void_p * len(held))(*(ctypes.addressof(each) for each in held))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        _require(_driver().cuLaunchKernel(self._function, *grid, *block, 0, stream, places, None), "launch")


def compiled(text: str, kind: str) -> bytes:
    """A CUDA source without headers, as what a device of that kind (`sm_90`) runs."""
    compiler, program = _compiler(), ctypes.c_void_p()
    made = compiler.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"famr.cu", 0, None, None)
    _require(made, "read")
    try:
        options = (ctypes.c_char_p * 1)(f"--gpu-architecture={kind}".encode())
        if compiler.nvrtcCompileProgram(program, 1, options):
            raise RuntimeError(_taken(compiler.nvrtcGetProgramLogSize, compiler.nvrtcGetProgramLog, program).decode())
        return _taken(compiler.nvrtcGetCUBINSize, compiler.nvrtcGetCUBIN, program)
    finally:
        compiler.nvrtcDestroyProgram(ctypes.byref(program))


def loaded(binary: bytes, *names: str) -> tuple[Kernel, ...]:
    """Functions of what was compiled, on the current device, for as long as the process lives."""
    module = ctypes.c_void_p()
    _require(_driver().cuModuleLoadData(ctypes.byref(module), binary), "load")
    found = []
    for name in names:
        function = ctypes.c_void_p()
        _require(_driver().cuModuleGetFunction(ctypes.byref(function), module, name.encode()), "find")
        found.append(Kernel(function))
    return tuple(found)


def architecture(device: torch.device) -> str:
    """Of a device, as the compiler calls it."""
    of = torch.cuda.get_device_properties(device)
    return f"sm_{of.major}{of.minor}"


def _as_c(value: Tensor | int | float) -> Any:
    if isinstance(value, Tensor):
        return ctypes.c_void_p(value.data_ptr())
    return ctypes.c_int(value) if isinstance(value, int) else ctypes.c_double(value)


def _taken(size_of: Any, take: Any, program: ctypes.c_void_p) -> bytes:
    """What the compiler has to say: first how much it is."""
    size = ctypes.c_size_t()
    _require(size_of(program, ctypes.byref(size)), "read")
    held = ctypes.create_string_buffer(size.value)
    _require(take(program, held), "read")
    return held.raw


def _require(failed: int, what: str) -> None:
    if failed:
        raise RuntimeError(f"CUDA error {failed}: could not {what} a kernel")


@cache
def _compiler() -> Any:
    """The one that torch was built with, and has beside it."""
    major = str(torch.version.cuda).split(".")[0]
    windows = sys.platform == "win32"
    return ctypes.CDLL(f"nvrtc64_{major}0_0.dll" if windows else f"libnvrtc.so.{major}")


@cache
def _driver() -> Any:
    return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
