"""CUDA graph replay: a step is recorded once and then replayed without Python in between.

A small network at a usual batch size keeps a GPU waiting for Python most of the time. A recorded step runs the same
kernels and reads its inputs from fixed buffers that are filled anew for every step.
"""

from __future__ import annotations

import gc
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache

import torch
from torch import Tensor

Shapes = tuple[tuple[torch.Size, torch.dtype], ...]
"""Shape and type of each tensor."""

SYNCHRONISES = "called a synchronizing CUDA operation"
"""What torch warns of where the host waits for the device."""
PROTOTYPE = "Synchronization debug mode is a prototype"
"""What torch warns of where these warnings are turned on."""


def shapes_of(tensors: Sequence[Tensor]) -> Shapes:
    """Shape and type of each tensor.

    Args:
        tensors: Any tensors.
    """
    return tuple((tensor.shape, tensor.dtype) for tensor in tensors)


def can_record(device: torch.device) -> bool:
    """Whether steps on a device can be recorded.

    Args:
        device: Where they run.
    """
    return device.type == "cuda"


@cache
def _stream(index: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(index)  # type: ignore[no-untyped-call]


@contextmanager
def side_stream(device: torch.device) -> Iterator[None]:
    """Work on the one stream of a device on which all steps run and are recorded.

    A capture may not wait for other streams, and the allocator returns memory to the stream that used it.

    Args:
        device: A CUDA device.
    """
    current = torch.cuda.current_stream(device)
    stream = _stream(current.device.index)
    stream.wait_stream(current)
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        current.wait_stream(stream)


class Recording:
    """A captured step, the buffers it reads, and the tensor in which it leaves its result.

    Args:
        step: Runs kernels on its arguments; the host may not wait for the device in it.
        inputs: Tensors of the shapes that it is to be replayed with.
        device: A CUDA device.
    """

    def __init__(self, step: Callable[..., Tensor], inputs: Sequence[Tensor], device: torch.device) -> None:
        self._graph = torch.cuda.CUDAGraph()
        self._inputs = [tensor.to(device, copy=True) for tensor in inputs]
        collecting = gc.isenabled()
        gc.disable()  # memory freed on the device in the middle of a capture would end it
        try:
            self._graph.capture_begin(capture_error_mode="relaxed")  # kernels may still have to be loaded
            try:
                self._result = step(*self._inputs)
            finally:
                self._graph.capture_end()
        finally:
            if collecting:
                gc.enable()

    def replay(self, inputs: Sequence[Tensor]) -> Tensor:
        """Run the recorded kernels.

        Args:
            inputs: Tensors of the recorded shapes.

        Returns:
            What the step returned, for these inputs.
        """
        for buffer, tensor in zip(self._inputs, inputs, strict=True):
            buffer.copy_(tensor)
        self._graph.replay()
        return self._result.clone()


class GraphedStep:
    """A step that is recorded and replayed, one recording for each shape of its inputs.

    A step that cannot be recorded is called every time, with one warning.

    Args:
        step: Takes tensors, works in place, and returns a tensor such as its loss. Everything that changes from call to
            call must be in its inputs or in tensors that are updated in place.
        device: The device. On any other than CUDA the step is simply called.
        warmup: Calls of each shape that are not recorded, at least 1: libraries choose their kernels in the first one,
            and optimisers create their state.
    """

    def __init__(self, step: Callable[..., Tensor], device: torch.device, warmup: int = 1) -> None:
        self._step, self._device, self._warmup = step, device, max(1, warmup)
        self._recordable = can_record(device)
        self._calls: Counter[Shapes] = Counter()
        self._recordings: dict[Shapes, Recording] = {}
        self._waited_before: set[Shapes] = set()

    def __call__(self, inputs: Sequence[Tensor]) -> Tensor:
        """Run the step.

        Args:
            inputs: The tensors that `step` takes.
        """
        if not can_record(self._device):
            return self._step(*inputs)
        shapes = shapes_of(inputs)
        with side_stream(self._device):
            if self._recordable and self._calls[shapes] == self._warmup:
                self._record(shapes, inputs)
            self._calls[shapes] += 1
            if shapes in self._recordings:
                return self._recordings[shapes].replay(inputs)
            inputs = [tensor.to(self._device) for tensor in inputs]
            last = self._recordable and self._calls[shapes] == self._warmup
            return self._last_warmup(shapes, inputs) if last else self._step(*inputs)

    def _last_warmup(self, shapes: Shapes, inputs: Sequence[Tensor]) -> Tensor:
        """Call the step and notice whether the host waits for the device in it, as no recorded step can.

        A step may copy constants to the device in its first call, and waits for them once: it is warmed up once more.
        One that waits again is not even tried: before version 2.12, torch is left without random numbers by a failed
        capture.
        """
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            before = torch.cuda.get_sync_debug_mode()
            torch.cuda.set_sync_debug_mode("warn")
            try:
                result = self._step(*inputs)
            finally:
                torch.cuda.set_sync_debug_mode(before)
        waits = [warning for warning in caught if SYNCHRONISES in str(warning.message)]
        for warning in caught:
            if warning not in waits and PROTOTYPE not in str(warning.message):
                warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
        if waits and shapes not in self._waited_before:
            self._waited_before.add(shapes)
            self._calls[shapes] -= 1
        elif waits:
            self._give_up(f"the host waits for the device at {waits[0].filename}:{waits[0].lineno}")
        return result

    def _record(self, shapes: Shapes, inputs: Sequence[Tensor]) -> None:
        try:
            self._recordings[shapes] = Recording(self._step, inputs, self._device)
        except RuntimeError as error:  # something else that a capture does not allow, or too little memory
            with suppress(RuntimeError):
                torch.cuda.synchronize(self._device)
            first = error if error.__context__ is None else error.__context__
            self._give_up((str(first).splitlines() or ["no reason given"])[0])

    def _give_up(self, reason: str) -> None:
        self._recordable = False
        warnings.warn(f"The steps of this network run one by one, which takes longer: {reason}.", stacklevel=4)
