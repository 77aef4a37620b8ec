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

import torch
from torch import Tensor

Shapes = tuple[torch.Size, ...]

_STREAMS: dict[torch.device, torch.cuda.Stream] = {}


@contextmanager
def side_stream(device: torch.device) -> Iterator[None]:
    """Work on the one stream of a device on which all steps are taken and recorded.

    A capture may not wait for other streams, and the allocator gives memory back to the stream that used it.

    Args:
        device: A CUDA device.
    """
    current = torch.cuda.current_stream(device)
    stream = _STREAMS.setdefault(current.device, torch.cuda.Stream(current.device))  # type: ignore[no-untyped-call]
    stream.wait_stream(current)
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        current.wait_stream(stream)


class _Recording:
    """A captured step, the buffers it reads, and the tensor in which it leaves its result."""

    def __init__(self, step: Callable[..., Tensor], inputs: Sequence[Tensor], device: torch.device) -> None:
        self._graph = torch.cuda.CUDAGraph()
        self._buffers = [tensor.to(device, copy=True) for tensor in inputs]
        collecting = gc.isenabled()
        gc.disable()  # memory freed on the device in the middle of a capture would end it
        try:
            self._graph.capture_begin(capture_error_mode="relaxed")  # kernels may still have to be loaded
            try:
                self._result = step(*self._buffers)
            finally:
                self._graph.capture_end()
        finally:
            if collecting:
                gc.enable()

    def replay(self, inputs: Sequence[Tensor]) -> Tensor:
        for buffer, tensor in zip(self._buffers, inputs, strict=True):
            buffer.copy_(tensor)
        self._graph.replay()
        return self._result.clone()


class GraphedStep:
    """A step that is recorded and replayed, one recording for each shape of its inputs.

    Args:
        step: Takes tensors, works in place, and returns a tensor such as its loss. Everything that changes from call to
            call must be in its inputs or in tensors that are updated in place.
        device: The device. On any other than CUDA the step is simply called.
        warmup: Calls of each shape that are not recorded, at least 1: libraries choose their kernels in the first one,
            and optimisers create their state.
    """

    def __init__(self, step: Callable[..., Tensor], device: torch.device, warmup: int = 1) -> None:
        self._step, self._device, self._warmup = step, device, max(1, warmup)
        self._calls: Counter[Shapes] = Counter()
        self._recordings: dict[Shapes, _Recording] = {}

    def __call__(self, inputs: Sequence[Tensor]) -> Tensor:
        """Run the step.

        Args:
            inputs: The tensors that `step` takes.
        """
        if self._device.type != "cuda":
            return self._step(*inputs)
        shapes = tuple(tensor.shape for tensor in inputs)
        with side_stream(self._device):
            if self._calls[shapes] == self._warmup:
                self._record(shapes, inputs)
            self._calls[shapes] += 1
            if shapes in self._recordings:
                return self._recordings[shapes].replay(inputs)
            return self._step(*inputs)

    def _record(self, shapes: Shapes, inputs: Sequence[Tensor]) -> None:
        try:
            self._recordings[shapes] = _Recording(self._step, inputs, self._device)
        except RuntimeError as error:  # a network that asks the device something in between, or too little memory
            with suppress(RuntimeError):
                torch.cuda.synchronize(self._device)
            first = error if error.__context__ is None else error.__context__
            reason = (str(first).splitlines() or ["no reason given"])[0]
            warnings.warn(f"The steps of this network run one by one, which takes longer: {reason}", stacklevel=2)
