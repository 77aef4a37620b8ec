"""What every alternative to FAMR is: numbers, a statement of what it serves, and one call.

    outcome = SalUn().unlearn(original, splits, seed=0)

`Outcome` carries the names that `famr.Unlearned` has too (model, original, request, method, seed, seconds, device), so
one bench reads both.
"""

from __future__ import annotations

import gc
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, ClassVar, NamedTuple, Self

import torch

from famr.data.request import Kind, Request
from famr.data.splits import Splits
from famr.engine.devices import Precision, deterministic, pick_device
from famr.errors import RequestError
from famr.models import Classifier
from famr.models.labels import require_same_labels

EVERY_KIND: tuple[Kind, ...] = ("class", "samples", "concept", "style", "images")
WHOLE_CLASSES: tuple[Kind, ...] = ("class", "concept", "images")


class Row(NamedTuple):
    """One pass of a method: what it did, how many steps so far, its mean loss, the seconds so far."""

    phase: str
    steps: int
    loss: float
    seconds: float


@dataclass(frozen=True, eq=False)
class Made:
    """What a method hands back to `unlearn`."""

    model: Classifier
    seconds: float
    image_passes: int
    """How often an image went through a network, all images together: free of hardware."""
    peak_memory: int | None = None
    history: tuple[Row, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of any method, ready to be measured beside others."""

    model: Classifier
    original: Classifier
    request: Request
    method: Alternative
    seed: int
    device: str
    precision: Precision
    seconds: float
    """All that the method did, preparations included; bringing images to the device and measuring are not."""
    image_passes: int
    peak_memory: int | None
    """Bytes on the GPU at most, beyond what lay there before: the images, the original, another method's leavings. None
    on other devices, where nobody counts them."""
    history: tuple[Row, ...]
    facts: Mapping[str, Any]
    """What the method says about its own run."""

    def to_json(self) -> dict[str, Any]:
        """As plain values, without the models."""
        return {
            "method": self.method.to_json(),
            "request": self.request.to_json(),
            "seed": self.seed,
            "device": self.device,
            "precision": self.precision,
            "seconds": self.seconds,
            "image_passes": self.image_passes,
            "peak_memory": self.peak_memory,
            "history": [row._asdict() for row in self.history],
            "facts": dict(self.facts),
        }


class Alternative(ABC):
    """A way to unlearn. Its numbers are the fields of a frozen dataclass, its loss a function in the same file."""

    name: ClassVar[str]
    paper: ClassVar[str]
    """A tag of docs/papers.md."""
    needs_retain: ClassVar[bool] = True
    """Whether it works on retained images too."""
    needs_labels: ClassVar[bool] = True
    """Whether it must know the classes of the images to forget."""
    kinds: ClassVar[tuple[Kind, ...]] = EVERY_KIND
    why_not: ClassVar[str] = ""
    """Why it does not serve the other kinds."""

    def serves(self, kind: Kind) -> str | None:
        """None where the method can serve such a request, else why it cannot."""
        if kind not in self.kinds:
            return self.why_not
        if kind == "images" and self.needs_retain:
            return "it works on retained images, and nothing but the images to forget was given"
        return None

    @abstractmethod
    def trials(self) -> Iterator[Self]:
        """The variants to try when the method is tuned, itself among them: the same small budget for all."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Its name and its numbers, as plain values."""

    @abstractmethod
    def made(self, original: Classifier, splits: Splits, seed: int, device: torch.device, precision: Precision) -> Made:
        """Do it; the request has been checked, and `original` must stay as it is."""

    def unlearn(
        self,
        original: Classifier,
        splits: Splits,
        *,
        seed: int = 0,
        device: str | None = None,
        precision: Precision | None = None,
    ) -> Outcome:
        """A new classifier that forgot; `original` is not changed. Refused before anything runs if it cannot be served.

        `precision` None: bf16 on CUDA, fp32 elsewhere.
        """
        self.check(original, splits)
        home = next(original.module.parameters()).device
        place = pick_device(device or ("auto" if home.type == "cpu" else str(home)))
        precise: Precision = precision or ("bf16" if place.type == "cuda" else "fp32")
        with deterministic(seed):
            made = self.made(original, splits, seed, place, precise)
        return Outcome(
            made.model,
            original,
            splits.request,
            self,
            seed,
            str(place),
            precise,
            made.seconds,
            made.image_passes,
            made.peak_memory,
            made.history,
            made.facts,
        )

    def check(self, original: Classifier, splits: Splits) -> None:
        """Raise where the request, the images or the labels do not allow this method."""
        require_same_labels(original, splits)
        if (reason := self.serves(kind_of(splits))) is not None:
            raise RequestError(
                f"{self.name} cannot serve this request: {reason}.",
                where=splits.request.describe(),
                fix="Use another method for it, e.g. FAMR.",
            )
        if self.needs_retain and (splits.retain is None or not splits.retain.labelled):
            raise RequestError(
                f"{self.name} needs retained images with labels.", where="splits.retain", fix="Give the whole data."
            )
        if self.needs_labels and not splits.forget.labelled:
            raise RequestError(
                f"{self.name} needs the classes of the images to forget.", where="splits.forget", fix="Label them."
            )


def kind_of(splits: Splits) -> Kind:
    """The kind of a request; a concept that leaves its classes behind is a matter of samples."""
    if splits.request.kind == "concept" and not splits.forgets_classes():
        return "samples"
    return splits.request.kind


class Meter:
    """Seconds, and bytes at most, of what happens inside; waits for a GPU before it looks at the clock.

    Bytes are those beyond what lay on the device before. What is not needed any more is let go first: else it would go
    meanwhile, and less would seem to be taken.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._start, self._before = 0.0, 0
        self._end: float | None = None
        self.peak_memory: int | None = None

    def __enter__(self) -> Self:
        if self._device.type == "cuda":
            gc.collect()
            torch.cuda.reset_peak_memory_stats(self._device)
            self._before = torch.cuda.memory_allocated(self._device)
        self._start = self._now()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end = self._now()
        if self._device.type == "cuda":
            self.peak_memory = torch.cuda.max_memory_allocated(self._device) - self._before

    @property
    def seconds(self) -> float:
        """So far, or in all once it has ended."""
        return (time.perf_counter() if self._end is None else self._end) - self._start

    def _now(self) -> float:
        """The clock, when the GPU has done all that it was given."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()
