"""Retraining without the forget set: the reference that other methods are compared with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from famr.baselines.base import Baseline, BaselineOutput, BaselineRow, RunSettings
from famr.baselines.costs import CostMeter
from famr.baselines.untrained import untrained
from famr.data.splits import Splits
from famr.models import Classifier
from famr.sisa.plan import images_per_epoch
from famr.training import Training, fit


@dataclass(frozen=True)
class Retrain(Baseline):
    """`famr.fit` on the retained images alone. BatchNorm computes new statistics.

    Attributes:
        training: The settings with which the original was trained.
        start: Makes the starting weights from a seed; None draws random ones, which is right only if the original
            started from random weights too.
    """

    training: Training = field(default_factory=Training)
    start: Callable[[int], Classifier] | None = field(default=None, compare=False)

    name = "retrain"
    paper = "none"

    def to_json(self) -> dict[str, Any]:
        """See `Baseline.to_json`."""
        start = "random weights" if self.start is None else "given"
        return {"name": self.name, "training": asdict(self.training), "start": start}

    def run(self, original: Classifier, splits: Splits, settings: RunSettings) -> BaselineOutput:
        """See `Baseline.run`."""
        assert splits.retain is not None
        start = untrained(original, settings.seed) if self.start is None else self.start(settings.seed)
        training = replace(self.training, precision=self.training.precision or settings.precision)
        with CostMeter(settings.device) as meter:
            trained = fit(start, splits.retain, training, seed=settings.seed, device=str(settings.device))
        return BaselineOutput(
            model=replace(original, module=trained.model.module),
            seconds=trained.seconds,
            image_passes=training.epochs * images_per_epoch(len(splits.retain), training.batch_size),
            peak_memory=meter.peak_memory,
            history=tuple(
                BaselineRow(f"epoch {row.epoch}", row.step, row.loss, row.seconds) for row in trained.history
            ),
        )
