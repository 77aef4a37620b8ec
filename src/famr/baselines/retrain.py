"""Retraining without the forget set: the truth that the others are measured against."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Self

import torch

from famr.baselines.alternative import Alternative, Made, Meter, Row
from famr.baselines.untrained import untrained
from famr.data.splits import Splits
from famr.engine.devices import Precision
from famr.models import Classifier
from famr.sisa.plan import images_per_epoch
from famr.training import Training, fit


@dataclass(frozen=True)
class Retrain(Alternative):
    """`famr.fit` on the retained images alone. Give it what the original was trained with.

    `start` makes the weights to start from out of a seed; None draws random ones, which is right only where the
    original began so. BatchNorm takes new statistics.
    """

    training: Training = field(default_factory=Training)
    start: Callable[[int], Classifier] | None = field(default=None, compare=False)

    name: ClassVar[str] = "retrain"
    paper: ClassVar[str] = "none"

    def trials(self) -> Iterator[Self]:
        """Itself alone: its settings are those of the original."""
        yield self

    def to_json(self) -> dict[str, Any]:
        """Its name and its numbers, as plain values."""
        start = "random weights" if self.start is None else "given"
        return {"name": self.name, "training": asdict(self.training), "start": start}

    def made(self, original: Classifier, splits: Splits, seed: int, device: torch.device, precision: Precision) -> Made:
        """A model that never saw the forget set."""
        assert splits.retain is not None
        start = untrained(original, seed) if self.start is None else self.start(seed)
        training = replace(self.training, precision=self.training.precision or precision)
        with Meter(device) as meter:
            trained = fit(start, splits.retain, training, seed=seed, device=str(device))
        model = replace(original, module=trained.model.module)
        history = tuple(Row(f"epoch {row.epoch}", row.step, row.loss, row.seconds) for row in trained.history)
        passes = training.epochs * images_per_epoch(len(splits.retain), training.batch_size)
        return Made(model, trained.seconds, passes, meter.peak_memory, history)
