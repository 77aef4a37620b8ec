"""Steps of one kind, taken again and again: on a GPU a step of a small network mostly waits for Python."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from famr.baselines.work import Work
from famr.engine.graphs import Captured


class Repeated:
    """A step, on CUDA captured and replayed.

    All that differs from step to step is handed to it as tensors; what it calls runs once for many steps.
    """

    def __init__(self, work: Work, step: Callable[..., Tensor]) -> None:
        self._work, self._step = work, step
        self._captured = Captured(step, work.device) if work.captures else None
        self._passes: dict[tuple[int, ...], int] = {}

    def take(self, left: int, *given: Tensor) -> Tensor:
        """One step, of `left` that are still to come; what it returns."""
        before, sizes = self._work.image_passes, tuple(size for tensor in given for size in tensor.shape[:1])
        said = self._step(*given) if self._captured is None else self._captured(given, sizes, left)
        self._passes.setdefault(sizes, self._work.image_passes - before)  # nobody counts in a step that is replayed
        self._work.image_passes = before + self._passes[sizes]
        return said
