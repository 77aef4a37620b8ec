"""A kernel is compiled beside other work, tried, and kept for all runs of a process."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

PIECE = 8
"""Numbers that are read at once."""
NEAR = 2**-7
"""How far a kernel may be from the library's answer in float32, as a share of it: what bf16 rounds away."""

Block = tuple[int, int, int]
Launch = Callable[[Block, Block, list[Any]], None]
"""Called with a grid, a block and the arguments."""
Key = tuple[type, int, torch.device]
"""What is wanted, for rows of which width, on which device."""

Own = TypeVar("Own")

_COMING: dict[Key, Future[Any]] = {}
_WAITED: list[float] = []


def begin(key: Key, make: Callable[[], Own], agrees: Callable[[Own], bool]) -> None:
    """See to it that something will be there; once for each key."""
    if key not in _COMING:
        _COMING[key] = beside().submit(_made, key[-1], make, agrees)


def ready(kind: type[Own], width: int, tensors: Iterable[Tensor]) -> Own | None:
    """What was begun for such tensors, once it is there; None where the library is to do it."""
    every = list(tensors)
    key = (kind, width, every[0].device)
    if key not in _COMING or not all(each.dtype == torch.bfloat16 and fits(each) for each in every):
        return None
    if not all(coming.done() for coming in _COMING.values()):
        begun = time.perf_counter()
        wait(list(_COMING.values()))  # nobody may ask the device for anything while a step is captured
        _WAITED.append(time.perf_counter() - begun)
    found: Own | None = _COMING[key].result()
    return found


def waited() -> float:
    """Seconds for which this process has waited for kernels so far."""
    return sum(_WAITED)


def in_use() -> list[str]:
    """The kernels that were compiled, tried and found right so far, by name and width."""
    done = [(kind.__name__, width) for (kind, width, _), coming in _COMING.items() if coming.result() is not None]
    return [f"{name} {width}" if width else name for name, width in sorted(set(done))]


def fits(tensor: Tensor) -> bool:
    """Whether there are numbers, one after the other, that can be read in pieces."""
    whole = tensor.numel() > 0 and tensor.numel() % PIECE == 0
    return whole and tensor.is_contiguous() and tensor.data_ptr() % (2 * PIECE) == 0


def fitting(slope: Tensor) -> Tensor:
    """A gradient as the kernels can read it: as it is, or a copy."""
    whole = slope.contiguous()
    return whole if fits(whole) else whole.clone()


def near(found: Iterable[Tensor], expected: Iterable[Tensor]) -> bool:
    """Whether tensors are the expected ones, up to what bf16 rounds away; never where one has something not a number.

    >>> near([torch.ones(4)], [torch.ones(4)]), near([torch.ones(4)], [torch.zeros(4)])
    (True, False)
    """
    return all(
        float((one.float() - other).norm()) <= NEAR * float(other.norm())
        for one, other in zip(found, expected, strict=True)
    )


def launches(name: str, **constants: int) -> tuple[Launch, Launch]:
    """The forward and the backward kernel of a source, with these constants set."""
    from torch.cuda import _utils as toolchain  # what `torch.cuda._compile_kernel` is made of, which compiles for each

    text = "".join(f"#define {constant} {value}\n" for constant, value in constants.items()) + source(name)
    with _without_headers():
        binary, _ = toolchain._nvrtc_compile(text, "forward")
    found: Any = toolchain._cuda_load_module(binary, ["forward", "backward"])
    return Kernel(found["forward"]), Kernel(found["backward"])


class Kernel:
    """A kernel on its device. Torch would open the driver's library anew for each launch, a fifth of a millisecond."""

    def __init__(self, loaded: Any) -> None:
        self.loaded = loaded

    def __call__(self, grid: Block, block: Block, given: list[Any]) -> None:
        """Launch it on the current stream; integers are passed as int, other numbers as double."""
        held = [_as_c(each) for each in given]
        places = (ctypes.c_void_p * len(held))(*(ctypes.addressof(each) for each in held))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        failed: int = _driver().cuLaunchKernel(self.loaded.func, *grid, *block, 0, stream, places, None)
        if failed:
            raise RuntimeError(f"CUDA error {failed} in the launch of a kernel")


def _as_c(value: Tensor | int | float) -> Any:
    if isinstance(value, Tensor):
        return ctypes.c_void_p(value.data_ptr())
    return ctypes.c_int(value) if isinstance(value, int) else ctypes.c_double(value)


@cache
def _driver() -> Any:
    """The library that torch launches kernels with."""
    from torch.cuda import _utils as toolchain

    return toolchain._get_gpu_runtime_library()


@contextmanager
def _without_headers() -> Iterator[None]:
    """Torch gives up where CUDA's own headers are not installed, as on most machines; these sources include none."""
    from torch.utils import cpp_extension

    home = cpp_extension.CUDA_HOME
    if home is None:
        cpp_extension.CUDA_HOME = str(Path(torch.__file__).parent)
    try:
        yield
    finally:
        cpp_extension.CUDA_HOME = home


@cache
def source(name: str) -> str:
    """What is compiled, but for the constants."""
    folder = files("famr") / "kernels"
    return "".join((folder / f"{part}.cu").read_text(encoding="utf-8") for part in ("bf16", name))


@cache
def beside() -> ThreadPoolExecutor:
    """One thread for what is done beside other work, one thing after the other."""
    return ThreadPoolExecutor(1)


def _made(device: torch.device, make: Callable[[], Own], agrees: Callable[[Own], bool]) -> Own | None:
    """Compiled and tried; None where either fails."""
    try:
        with torch.cuda.device(device):
            torch.cuda.synchronize()  # this thread has to be known to the device before anything is loaded
            found = make()
            return found if agrees(found) else None
    except Exception:  # an older torch, a missing compiler, another kind of device: the library's kernels will do
        return None
