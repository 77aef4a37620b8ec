"""FAMR behind the interface of the baselines, so that a benchmark runs all methods alike."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from famr.baselines.base import Baseline, BaselineOutput, BaselineRow, RunSettings, preload
from famr.baselines.costs import CostMeter
from famr.config import FAMR
from famr.data.request import Kind
from famr.data.splits import Splits
from famr.models import Classifier
from famr.proxies.recipe import ProxyRecipe
from famr.proxies.source import TRAINED_NOW
from famr.unlearn.forget import forget
from famr.unlearn.history import ROWS, Monitor
from famr.unlearn.result import Unlearned


@dataclass(frozen=True)
class FamrMethod(Baseline):
    """`famr.forget` with given settings. Nothing is tuned: it searches its own strength.

    The seconds are those of the whole call: a proxy, copies, targets, anchors, every strength that is tried, and the
    evaluations by which it is chosen. `facts` has the seconds of the steps alone.

    Attributes:
        method: The settings.
        recipe: How the original was trained, for a proxy; None: as its folder records.
        track: Whether the retain set is evaluated after each epoch and `facts` has the whole history: for figures, not
            for comparing seconds.
    """

    method: FAMR = field(default_factory=FAMR)
    track: bool = False
    recipe: ProxyRecipe | None = field(default=None, compare=False)

    name = "FAMR"
    paper = "FAMR"
    needs_retain = False
    needs_labels = False

    def refusal(self, kind: Kind) -> str | None:
        """See `Baseline.refusal`; styles need a style loss.

        Args:
            kind: Of the request.
        """
        if kind == "style" and not self.method.forgets_style:
            return "a style needs β > 0 and a style layer"
        return None

    def to_json(self) -> dict[str, Any]:
        """See `Baseline.to_json`."""
        return {"name": self.name, **self.method.to_json()}

    def run(self, original: Classifier, splits: Splits, settings: RunSettings) -> BaselineOutput:
        """See `Baseline.run`."""
        method = replace(self.method, precision=self.method.precision or settings.precision)
        preload((splits.forget, splits.retain, splits.test), original.preprocessing, settings.device)
        monitor = Monitor(track_retain=self.track, rows=ROWS if self.track else 1)
        with CostMeter(settings.device) as meter:
            result = forget(
                original,
                splits,
                method,
                recipe=self.recipe,
                seed=settings.seed,
                device=str(settings.device),
                monitor=monitor,
            )
        facts: dict[str, Any] = {
            "seconds_of_steps": result.seconds,
            "why": result.why,
            "tries": max(1, len(result.trials)),
            "drift": result.drift,
        }
        if self.track:
            facts["history"] = [asdict(row) for row in result.history]
        return BaselineOutput(
            model=result.model,
            seconds=meter.seconds,
            image_passes=count_image_passes(result, splits),
            peak_memory=meter.peak_memory,
            history=tuple(
                BaselineRow(f"epoch {row.epoch}", row.step, row.loss_total, row.seconds)
                for row in result.history
                if row.epoch
            ),
            facts=facts,
        )


def count_image_passes(result: Unlearned, splits: Splits) -> int:
    """Image passes of a run of FAMR: proxy, target, curvature, steps and function-space anchor of every trial.

    Passes for evaluation are not counted.

    Args:
        result: The run.
        splits: The request's sets.
    """
    method, last = result.method, result.history[-1]
    passes = (last.epoch + 1) * len(splits.forget)
    if method.anchor != "l2" and splits.retain is not None:
        passes += min(method.fisher_images, len(splits.retain)) * (2 if method.anchor == "kfac" else 1)
    if method.function_strength:
        passes += last.step * method.batch_size
    passes *= max(1, len(result.trials))
    if result.proxy_source is not None and splits.retain is not None and result.proxy_source["trained"] == TRAINED_NOW:
        late, epochs = result.proxy_source["late_share"], result.proxy_source["epochs"]
        passes += round(len(splits.retain) * (1 - late + late * epochs))  # early layers once, late ones in every epoch
    return passes
