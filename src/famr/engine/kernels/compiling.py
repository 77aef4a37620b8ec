"""A kernel is compiled beside other work, tried, and kept for all runs of a process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

import torch
from torch import Tensor

from famr.engine.kernels.toolchain import Launch, architecture, compiled, loaded

PIECE = 8
"""Numbers that are read at once."""
NEAR = 2**-7
"""How far a kernel may be from the library's answer in float32, as a share of it: what bf16 rounds away."""

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


def launches(name: str, device: torch.device, **constants: int) -> tuple[Launch, Launch]:
    """The forward and the backward kernel of a source, with these constants set."""
    text = "".join(f"#define {constant} {value}\n" for constant, value in constants.items()) + source(name)
    forward, backward = loaded(compiled(text, architecture(device)), "forward", "backward")
    return forward, backward


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
