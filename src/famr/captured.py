"""Speed on CUDA: a step is captured once as a graph of kernels and then replayed, with no Python in between.

A small network at a usual batch size keeps a GPU waiting for Python most of the time. A captured step does the same
arithmetic with the same kernels, reading its images from fixed places that are filled anew for each step. A batch of
another size is captured on its own; the first of each size is stepped plainly, and so are all of a size that will not
come often enough.

Everything of a run is on one stream of its own, which is the same for all runs. The node that collects a weight's
gradient belongs to the stream it was made on, and may outlive its step; a capture may not wait for any other stream.
And memory that is given back serves the stream it was used on: another would ask the device for more, which takes time.
"""

from __future__ import annotations

import gc
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from famr.batches import Batch

Step = Callable[[Batch], Tensor]
"""One step of Alg. 1 on a batch, in place; its loss."""

WORTH = 12
"""From so many steps on a capture pays for itself."""
AHEAD = 2
"""A graph asks for its memory in one piece, as each takes time: for one part in so many of what is free at most. Where
it needs more, what plain steps left unused is given back before, which takes time too."""

_STREAMS: dict[torch.device, torch.cuda.Stream] = {}


def own_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream on which all runs on a device work."""
    place = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
    if place not in _STREAMS:
        _STREAMS[place] = torch.cuda.Stream(place)  # type: ignore[no-untyped-call]
    return _STREAMS[place]


@contextmanager
def aside(device: torch.device) -> Iterator[None]:
    """Work on that stream; before and after it the two streams wait for each other, the host for neither."""
    if device.type != "cuda":
        yield
        return
    here, there = torch.cuda.current_stream(device), own_stream(device)
    there.wait_stream(here)
    try:
        with torch.cuda.stream(there):
            yield
    finally:
        here.wait_stream(there)


def worth_capturing(seen: Counter[tuple[int, ...]], sizes: tuple[int, ...], left: int) -> bool:
    """Whether a batch of these sizes came before, and will come often in the steps that are left.

    >>> seen = Counter({(128,): 39, (8,): 1})
    >>> worth_capturing(seen, (128,), left=40), worth_capturing(seen, (8,), left=40), worth_capturing(seen, (9,), 40)
    (True, False, False)
    """
    return seen[sizes] * left >= WORTH * seen.total() > 0


class Captured:
    """A step that is replayed."""

    def __init__(self, step: Step, device: torch.device) -> None:
        self._step, self._device = step, device
        self._seen: Counter[tuple[int, ...]] = Counter()
        self._graphs: dict[tuple[int, ...], tuple[torch.cuda.CUDAGraph, Batch, Tensor] | None] = {}

    def __call__(self, batch: Batch, sizes: tuple[int, ...], left: int) -> Tensor:
        """Take the step. `sizes`: images of this batch and of those the anchors drew. `left`: steps still to come."""
        with aside(self._device):
            if sizes not in self._graphs and worth_capturing(self._seen, sizes, left):
                self._graphs[sizes] = self._capture(batch)
            self._seen[sizes] += 1
            found = self._graphs.get(sizes)
            if found is None:
                return self._step(batch)
            graph, held, loss = found
            held.images.copy_(batch.images)
            held.positions.copy_(batch.positions)
            graph.replay()
            return loss.clone()

    def _capture(self, batch: Batch) -> tuple[torch.cuda.CUDAGraph, Batch, Tensor] | None:
        """The step as a graph, which does not take it; None for a network that cannot be captured.

        A plain step of this size came before: libraries have chosen their kernels and made their work space.
        """
        held = Batch(batch.images.clone(), batch.labels, batch.positions.to(batch.images.device).clone())
        graph = torch.cuda.CUDAGraph()
        collecting = gc.isenabled()
        gc.disable()  # what it frees on the device in the middle of a capture would end it
        torch.cuda.synchronize()
        free, _total = torch.cuda.mem_get_info()
        needed = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
        if AHEAD * needed > free:
            torch.cuda.empty_cache()  # a graph has memory of its own, beside what plain steps leave unused
            free, _total = torch.cuda.mem_get_info()
        try:
            graph.capture_begin()
            try:
                torch.empty(min(needed, free // AHEAD), dtype=torch.uint8, device=self._device)  # to be cut up below
                loss = self._step(held)
            finally:
                graph.capture_end()
        except RuntimeError as error:  # a network that asks the device something in between
            torch.cuda.synchronize()
            first = error if error.__context__ is None else error.__context__
            why = (str(first).splitlines() or ["no reason given"])[0]
            warnings.warn(f"The steps of this network run one by one, which takes longer: {why}", stacklevel=2)
            return None
        finally:
            if collecting:
                gc.enable()
        return graph, held, loss
