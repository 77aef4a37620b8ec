"""Speed on CUDA: a step is captured once as a graph of kernels and then replayed, with no Python in between.

A small network at a usual batch size keeps a GPU waiting for Python most of the time. A captured step does the same
arithmetic with the same kernels, reading its images from fixed places that are filled anew for each step. A batch of
another size is captured on its own; the first of each size is stepped plainly, and so are all of a size that will not
come often enough.
"""

from __future__ import annotations

import gc
import warnings
from collections import Counter
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from famr.batches import Batch

Step = Callable[[Batch], Tensor]
"""One step of Alg. 1 on a batch, in place; its loss."""

WARM_UPS = 2
"""Plain steps before a capture, so that libraries have chosen their kernels and made their work space."""
WORTH = 12
"""From so many steps on a capture pays for itself."""


def worth_capturing(seen: Counter[tuple[int, ...]], sizes: tuple[int, ...], left: int) -> bool:
    """Whether a batch of these sizes came before, and will come often in the steps that are left.

    >>> seen = Counter({(128,): 39, (8,): 1})
    >>> worth_capturing(seen, (128,), left=40), worth_capturing(seen, (8,), left=40), worth_capturing(seen, (9,), 40)
    (True, False, False)
    """
    return seen[sizes] * left >= WORTH * seen.total() > 0


class Captured:
    """A step that is replayed."""

    def __init__(self, step: Step, parameters: Sequence[nn.Parameter], optimiser: torch.optim.Optimizer | None) -> None:
        self._step, self._parameters, self._optimiser = step, parameters, optimiser
        self._seen: Counter[tuple[int, ...]] = Counter()
        self._graphs: dict[tuple[int, ...], tuple[torch.cuda.CUDAGraph, Batch, Tensor] | None] = {}

    def __call__(self, batch: Batch, sizes: tuple[int, ...], left: int) -> Tensor:
        """Take the step. `sizes`: images of this batch and of those the anchors drew. `left`: steps still to come."""
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
        """The step as a graph, with every weight as it was before; None for a network that cannot be captured."""
        held = Batch(batch.images.clone(), batch.labels, batch.positions.to(batch.images.device).clone())
        before = [tensor.clone() for tensor in self._state()]
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(WARM_UPS):
                self._step(held)
        torch.cuda.current_stream().wait_stream(aside)
        self._restore(before)
        for parameter in self._parameters:
            parameter.grad = None
        graph = torch.cuda.CUDAGraph()
        collecting = gc.isenabled()
        gc.disable()  # what it frees on the device in the middle of a capture would end it
        try:
            with torch.cuda.graph(graph):
                loss = self._step(held)
        except RuntimeError as error:  # a network that asks the device something in between
            torch.cuda.synchronize()
            self._restore(before)
            why = (str(error).splitlines() or ["no reason given"])[0]
            warnings.warn(f"The steps of this network run one by one, which takes longer: {why}", stacklevel=2)
            return None
        finally:
            if collecting:
                gc.enable()
        return graph, held, loss

    def _state(self) -> list[Tensor]:
        """Everything a step changes: the weights, and what the optimiser remembers."""
        remembered = [] if self._optimiser is None else [self._optimiser.state.get(p, {}) for p in self._parameters]
        return [*self._parameters, *(t for each in remembered for t in each.values() if isinstance(t, Tensor))]

    @torch.no_grad()
    def _restore(self, before: Sequence[Tensor]) -> None:
        """Undo the warm-up; what the optimiser did not remember before it begins at zero, as Adam does."""
        for place, tensor in enumerate(self._state()):
            if place < len(before):
                tensor.copy_(before[place])
            else:
                tensor.zero_()
