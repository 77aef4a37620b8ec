"""FAMR behind the same call, so that a bench compares it like any other method."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Self

import torch

from famr.baselines.alternative import Alternative, Made, Meter, Row
from famr.config import FAMR
from famr.data.loaders import gpu_pixels
from famr.data.request import Kind
from famr.data.splits import Splits
from famr.engine.devices import Precision
from famr.models import Classifier
from famr.unlearn.forget import forget
from famr.unlearn.history import ROWS, Monitor
from famr.unlearn.result import Unlearned


@dataclass(frozen=True)
class Ours(Alternative):
    """`famr.forget` with a method of one's choice. The seconds are of all it does, targets, anchors, and every strength
    it tries; `facts` has the seconds of the steps alone, and of the whole call, which copies and measures, too."""

    method: FAMR = field(default_factory=FAMR)
    track: bool = False
    """Whether all is measured after each epoch, and `facts` has the whole history: for figures, not for comparing
    seconds."""

    name: ClassVar[str] = "FAMR"
    paper: ClassVar[str] = "FAMR"
    needs_retain: ClassVar[bool] = False
    needs_labels: ClassVar[bool] = False

    def serves(self, kind: Kind) -> str | None:
        """Styles only with a style loss."""
        if kind == "style" and not self.method.forgets_style:
            return "a style needs β > 0 and a style layer"
        return None

    def trials(self) -> Iterator[Self]:
        """Itself alone: it chooses its own strength."""
        yield self

    def to_json(self) -> dict[str, Any]:
        """Its name and its numbers, as plain values."""
        return {"name": self.name, **self.method.to_json()}

    def made(self, original: Classifier, splits: Splits, seed: int, device: torch.device, precision: Precision) -> Made:
        """Run Alg. 1, or what the method makes of it."""
        method = replace(self.method, precision=self.method.precision or precision)
        for images in (splits.forget, splits.retain, splits.test):
            if images is not None and original.preprocessing is not None:
                gpu_pixels(images, original.preprocessing, device)
        with Meter(device) as meter:
            monitor = Monitor(track_retain=self.track, rows=ROWS if self.track else 1)
            result = forget(original, splits, method, seed=seed, device=str(device), monitor=monitor)
        facts: dict[str, Any] = {
            "seconds_of_steps": result.seconds,
            "seconds_of_the_call": meter.seconds,
            "why": result.why,
            "tries": max(1, len(result.trials)),
            "drift": result.drift,
        }
        if self.track:
            facts["history"] = [asdict(row) for row in result.history]
        history = tuple(
            Row(f"epoch {row.epoch}", row.step, row.loss_total, row.seconds) for row in result.history if row.epoch
        )
        assert result.seconds_of_all is not None  # it began anew
        passes = image_passes(result, splits)
        return Made(result.model, result.seconds_of_all, passes, meter.peak_memory, history, facts)


def image_passes(result: Unlearned, splits: Splits) -> int:
    """Images through the network: target, curvature, steps and held answers of every try; measuring is not counted."""
    method, last = result.method, result.history[-1]
    a_try = (last.epoch + 1) * len(splits.forget)
    if method.anchor != "l2" and splits.retain is not None:
        a_try += min(method.fisher_images, len(splits.retain)) * (2 if method.anchor == "kfac" else 1)
    if method.function_strength:
        a_try += last.step * method.batch_size
    return a_try * max(1, len(result.trials))
