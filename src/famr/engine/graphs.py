"""Speed on CUDA: a step is captured once as a graph of kernels and then replayed, with no Python in between.

A small network at a usual batch size keeps a GPU waiting for Python most of the time. A captured step does the same
arithmetic with the same kernels, reading its images from fixed places that are filled anew for each step. A batch of
another size is captured on its own; all of a size that will not come often enough are stepped plainly, and so is the
first of each size, unless libraries are awake and a step keeps nothing for the next: then the first is captured too.
Where plain steps keep the device busy for longer than Python, one is captured behind them, before they are done.

Plain and captured steps take their memory from one pool: what a plain step left unused is what the graph needs.

Everything of a run is on one stream of its own, which is the same for all runs. The node that collects a weight's
gradient belongs to the stream it was made on, and may outlive its step; a capture may not wait for any other stream.
And memory that is given back serves the stream it was used on: another would ask the device for more, which takes time.
"""

from __future__ import annotations

import gc
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import torch
from torch import Tensor

from famr.engine.devices import with_index

Step = Callable[..., Tensor]
"""One step on what it is given, as tensors, in place; its loss."""

WORTH = 3
"""From so many steps on a capture pays for itself: it takes as long as one or two plain steps save."""

_STREAMS: dict[torch.device, torch.cuda.Stream] = {}


def own_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream on which all runs on a device work."""
    place = with_index(device)
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
    """Whether batches of these sizes will come often in the steps that are left, going by those that came before.

    Of the very first it is taken for granted that the others will be like it.

    >>> seen = Counter({(128,): 39, (8,): 1})
    >>> worth_capturing(seen, (128,), left=40), worth_capturing(seen, (8,), left=40), worth_capturing(seen, (9,), 40)
    (True, False, False)
    """
    alike, every = (seen[sizes], seen.total()) if seen else (1, 1)
    return alike * left >= WORTH * every


def own_pool() -> torch.cuda.MemPool | None:
    """Memory that plain and captured steps share; None where somebody chose an allocator that has no such thing."""
    return torch.cuda.MemPool() if torch.cuda.memory.get_allocator_backend() == "native" else None


def let_go(pool: torch.cuda.MemPool, device: torch.device) -> None:
    """End what a capture began with a pool; one that breaks off leaves that undone, and the pool could not be used."""
    place = with_index(device).index
    with suppress(RuntimeError):  # it had ended
        torch._C._cuda_endAllocateToPool(place, pool.id)
        torch._C._cuda_releasePool(place, pool.id)


class Graph:
    """A captured step, the places it reads from, and where it leaves its loss; never without the pool of its memory."""

    def __init__(self, pool: torch.cuda.MemPool | None, like: Sequence[Tensor], device: torch.device) -> None:
        self._graph = torch.cuda.CUDAGraph()  # goes before the pool does, which must not be in use any more
        self._pool = pool
        self._held = [given.to(device, copy=True) for given in like]
        self._loss: Tensor

    def capture(self, step: Step) -> None:
        """Write the step down; it is not taken."""
        pool: Any = None if self._pool is None else self._pool.id
        self._graph.capture_begin(pool=pool, capture_error_mode="relaxed")  # kernels may still have to be loaded
        try:
            self._loss = step(*self._held)
        finally:
            self._graph.capture_end()

    def replay(self, given: Sequence[Tensor]) -> Tensor:
        """Take the step on other images; its loss."""
        for place, tensor in zip(self._held, given, strict=True):
            place.copy_(tensor)
        self._graph.replay()
        return self._loss.clone()


class Captured:
    """A step that is replayed."""

    def __init__(self, step: Step, device: torch.device, plain: int = 1, behind: bool = False) -> None:
        """`plain`: steps of each size that are taken plainly first; none where nothing is made in the first alone.

        `behind`: capture while the device is still at the last of these, and not when the next is to be taken.
        """
        self._step, self._device, self._plain, self._behind = step, device, plain, behind
        self._seen: Counter[tuple[int, ...]] = Counter()
        self._graphs: dict[tuple[int, ...], Graph | None] = {}
        self._pool = own_pool()

    def __call__(self, given: Sequence[Tensor], sizes: tuple[int, ...], left: int) -> Tensor:
        """Take the step. `sizes`: of what it is given and of all else that it reads. `left`: steps still to come."""
        with aside(self._device):
            self._capture(given, sizes, left)
            self._seen[sizes] += 1
            found = self._graphs.get(sizes)
            if found is not None:
                return found.replay(given)
            with nullcontext() if self._pool is None else torch.cuda.use_mem_pool(self._pool):
                loss = self._step(*given)
            said = loss.clone()  # outside of the pool: what is free there a graph may write on, whoever got it since
            if self._behind:
                self._capture(given, sizes, left - 1)
            return said

    def _capture(self, given: Sequence[Tensor], sizes: tuple[int, ...], left: int) -> None:
        """The next step, where it is due and pays; `left` with it."""
        before = self._seen[sizes]
        if before >= self._plain and sizes not in self._graphs and worth_capturing(self._seen, sizes, left):
            graph = self._captured(given, last=before > 0)
            if graph is not None or before:  # else it may work after a plain step
                self._graphs[sizes] = graph

    def _captured(self, given: Sequence[Tensor], last: bool) -> Graph | None:
        """The step as a graph; None where it cannot be captured, of which a last attempt warns.

        Where a plain step of this size came before, libraries have chosen their kernels and made their work space. The
        device may still be at it, as nothing here asks it.
        """
        collecting = gc.isenabled()
        gc.disable()  # what it frees on the device in the middle of a capture would end it
        try:
            found = Graph(self._pool, given, self._device)
            found.capture(self._step)
        except RuntimeError as error:  # a network that asks the device something in between
            torch.cuda.synchronize()
            if self._pool is not None:
                let_go(self._pool, self._device)
                self._pool = None if last else own_pool()
            if not last:
                return None
            first = error if error.__context__ is None else error.__context__
            why = (str(first).splitlines() or ["no reason given"])[0]
            warnings.warn(f"The steps of this network run one by one, which takes longer: {why}", stacklevel=2)
            return None
        finally:
            if collecting:
                gc.enable()
        return found
