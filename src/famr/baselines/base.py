"""The interface of a baseline: a frozen dataclass of its numbers, the requests it supports, and one call.

    result = SalUn().unlearn(original, splits, seed=0)

A result has the attributes of `famr.Unlearned` that a comparison reads: model, original, request, method, seed,
seconds, device.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Self

import torch

from famr.data import Images
from famr.data.loaders import gpu_pixels
from famr.data.request import Kind, Request
from famr.data.splits import Splits
from famr.data.transforms import Preprocessing
from famr.engine.devices import Precision, deterministic, pick_device
from famr.errors import RequestError
from famr.models import Classifier
from famr.models.labels import require_same_labels

ALL_KINDS: tuple[Kind, ...] = ("class", "samples", "concept", "style", "images")
WHOLE_CLASSES: tuple[Kind, ...] = ("class", "concept", "images")


class BaselineRow(NamedTuple):
    """One epoch or phase of a baseline.

    Attributes:
        phase: Its name.
        steps: Steps taken so far.
        loss: Mean loss of its steps.
        seconds: Seconds so far.
    """

    phase: str
    steps: int
    loss: float
    seconds: float


@dataclass(frozen=True)
class RunSettings:
    """How a baseline is run, apart from its own numbers.

    Attributes:
        seed: Of every random draw.
        device: Where it computes.
        precision: Of the forward passes.
    """

    seed: int
    device: torch.device
    precision: Precision


@dataclass(frozen=True, eq=False, kw_only=True)
class BaselineOutput:
    """The unlearned model and what it cost.

    Attributes:
        model: The unlearned classifier.
        seconds: Of all that the method does, masks and importances included; copying images to the device and
            evaluation are not.
        image_passes: Images that went through a network, summed over all forward passes: a cost that does not depend
            on the hardware.
        peak_memory: Bytes on the GPU at most, beyond what was allocated before; None on other devices.
        history: One row an epoch or phase.
        facts: What the method records about its run, as plain values.
    """

    model: Classifier
    seconds: float
    image_passes: int
    peak_memory: int | None = None
    history: tuple[BaselineRow, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, kw_only=True)
class BaselineResult(BaselineOutput):
    """The output of a baseline together with what it was run on.

    Attributes:
        original: The classifier that was unlearned; unchanged.
        request: What was forgotten.
        method: The baseline with its numbers.
        seed: Of every random draw.
        device: Where it was computed.
        precision: Of the forward passes.
    """

    original: Classifier
    request: Request
    method: Baseline
    seed: int
    device: str
    precision: Precision

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


@dataclass(frozen=True)
class Baseline(ABC):
    """An unlearning method. Its numbers are the fields of a frozen dataclass, its loss is a function in the same file.

    Attributes:
        name: Its name in tables.
        paper: A tag of docs/papers.md.
        needs_retain: Whether it uses retained images.
        needs_labels: Whether it uses the true classes of the forget images.
        kinds: The kinds of requests that it supports.
        refusal_reason: Why it does not support the others.
        published: Numbers of the paper, or of its authors' code, where they differ from the defaults.
        tuning: Further variants to try, each the numbers in which it differs from the defaults. A number that is no
            field of the method is one of its `steps`.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    needs_retain: ClassVar[bool] = True
    needs_labels: ClassVar[bool] = True
    kinds: ClassVar[tuple[Kind, ...]] = ALL_KINDS
    refusal_reason: ClassVar[str] = ""
    published: ClassVar[Mapping[str, Any]] = {}
    tuning: ClassVar[Sequence[Mapping[str, Any]]] = ()

    @abstractmethod
    def run(self, original: Classifier, splits: Splits, settings: RunSettings) -> BaselineOutput:
        """Unlearn, after `check`.

        Args:
            original: The trained classifier; it must not be changed.
            splits: What to forget, and the other images.
            settings: Seed, device and precision.
        """

    def refusal(self, kind: Kind) -> str | None:
        """Why the method does not support a kind of request; None where it does.

        Args:
            kind: Of the request, see `request_kind`.
        """
        if kind not in self.kinds:
            return self.refusal_reason
        if kind == "images" and self.needs_retain:
            return "it works on retained images, and nothing but the images to forget was given"
        return None

    def with_numbers(self, **numbers: Any) -> Self:
        """A copy with other numbers.

        Args:
            **numbers: By name. A number that is no field of the method is one of its `steps`.

        >>> from famr.baselines import SalUn
        >>> method = SalUn().with_numbers(share=0.2, learning_rate=0.05)
        >>> method.share, method.steps.learning_rate
        (0.2, 0.05)
        """
        own = {number.name for number in fields(self)}
        if "steps" in own:
            of_steps = {name: numbers.pop(name) for name in list(numbers) if name not in own}
            numbers["steps"] = replace(numbers.get("steps", vars(self)["steps"]), **of_steps)
        return replace(self, **numbers)

    def trials(self) -> Iterator[Self]:
        """The variants to try when the method is tuned: its own numbers, the paper's, those in `tuning`; each once."""
        variants = [self, self.as_published(), *(self.with_numbers(**numbers) for numbers in self.tuning)]
        yield from (variant for index, variant in enumerate(variants) if variant not in variants[:index])

    def as_published(self) -> Self:
        """The method with the numbers of its paper, as far as they are known."""
        return self.with_numbers(**self.published)

    def shortened(self, steps: int, planned: int) -> Self:  # noqa: ARG002  # for methods that take steps
        """The method with at most so many steps; unchanged if it cannot be cut.

        Args:
            steps: Steps that it may take, at least 1.
            planned: Steps that it takes uncut.
        """
        return self

    def to_json(self) -> dict[str, Any]:
        """Its name and its numbers, as plain values."""
        return {"name": self.name, **asdict(self)}

    def unlearn(
        self,
        original: Classifier,
        splits: Splits,
        *,
        seed: int = 0,
        device: str | None = None,
        precision: Precision | None = None,
    ) -> BaselineResult:
        """Make a new classifier that forgot; `original` is not changed.

        Args:
            original: The trained classifier.
            splits: What to forget, and the other images.
            seed: Of every random draw.
            device: Where to compute; None: where the original is, or the best available if that is the CPU.
            precision: None: bf16 on CUDA, fp32 elsewhere.

        Raises:
            RequestError: The request, the images or the labels do not allow this method.
            NumericsError: The loss or a weight is not finite.
        """
        self.check(original, splits)
        home = next(original.module.parameters()).device
        chosen = pick_device(device or ("auto" if home.type == "cpu" else str(home)))
        settings = RunSettings(seed, chosen, precision or ("bf16" if chosen.type == "cuda" else "fp32"))
        with deterministic(seed):
            output = self.run(original, splits, settings)
        return BaselineResult(
            **vars(output),
            original=original,
            request=splits.request,
            method=self,
            seed=seed,
            device=str(chosen),
            precision=settings.precision,
        )

    def check(self, original: Classifier, splits: Splits) -> None:
        """Check the request before anything is computed.

        Args:
            original: The trained classifier.
            splits: What to forget, and the other images.

        Raises:
            RequestError: The request, the images or the labels do not allow this method.
        """
        require_same_labels(original, splits)
        if (reason := self.refusal(request_kind(splits))) is not None:
            raise RequestError(
                f"{self.name} cannot serve this request: {reason}.",
                where=splits.request.describe(),
                fix="Use another method for it, e.g. FAMR.",
            )
        if self.needs_retain and (splits.retain is None or not splits.retain.labelled):
            raise RequestError(
                f"{self.name} needs retained images with labels.",
                where="splits.retain",
                fix="Give the whole data set, with labels.",
            )
        if self.needs_labels and not splits.forget.labelled:
            raise RequestError(
                f"{self.name} needs the classes of the images to forget.", where="splits.forget", fix="Label them."
            )


def numbers(**values: Any) -> Mapping[str, Any]:
    """Numbers of a method by name, e.g. those of its paper.

    Args:
        **values: By name.
    """
    return MappingProxyType(values)


def request_kind(splits: Splits) -> Kind:
    """The kind of a request; a concept whose classes keep other images is a request for samples.

    Args:
        splits: The request's sets.
    """
    if splits.request.kind == "concept" and not splits.forgets_classes():
        return "samples"
    return splits.request.kind


def preload(sets: Iterable[Images | None], preprocessing: Preprocessing | None, device: torch.device) -> None:
    """Copy sets of small images to the GPU before the costs are measured; on other devices nothing happens.

    Args:
        sets: The sets that a method uses.
        preprocessing: Of the model.
        device: Where the method computes.
    """
    for images in sets:
        if images is not None and preprocessing is not None:
            gpu_pixels(images, preprocessing, device)
