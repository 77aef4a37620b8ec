"""SISA as a baseline: exact removal from an ensemble that was trained in shards and slices."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from famr.baselines.base import Baseline, BaselineOutput, RunSettings
from famr.baselines.costs import CostMeter
from famr.data.splits import Splits
from famr.errors import RequestError
from famr.models import Classifier
from famr.sisa import Sisa
from famr.sisa.voting import Vote


@dataclass(frozen=True)
class SisaRemoval(Baseline):
    """Retrain the shards that were trained on the forget set, from before its first image [Bourtoule et al. 2021].

    The ensemble comes from `famr.sisa.train_sisa` on the same training images, and the original is its classifier.
    Seeds and precision are those that it was trained with. BatchNorm computes new statistics.

    Attributes:
        sisa: The ensemble; `unlearn` refuses without one.
        vote: How its models' predictions are combined.
    """

    sisa: Sisa | None = field(default=None, compare=False)
    vote: Vote = "majority"

    name = "SISA"
    paper = "Bourtoule et al. 2021"

    def to_json(self) -> dict[str, Any]:
        """See `Baseline.to_json`."""
        if self.sisa is None:
            return {"name": self.name, "vote": self.vote, "plan": None}
        training = asdict(self.sisa.training)
        return {"name": self.name, "vote": self.vote, "plan": asdict(self.sisa.plan), "training": training}

    def check(self, original: Classifier, splits: Splits) -> None:
        """See `Baseline.check`; an ensemble is needed too.

        Args:
            original: The trained classifier.
            splits: What to forget, and the other images.

        Raises:
            RequestError: There is no ensemble, or the request or the images do not allow this method.
        """
        super().check(original, splits)
        if self.sisa is None:
            raise RequestError(
                "SISA cannot unlearn from a single trained model: it needs models that were trained in shards.",
                where="SisaRemoval(sisa=None)",
                fix="Train them with famr.sisa.train_sisa and pass the result: SisaRemoval(sisa).",
            )

    def run(self, original: Classifier, splits: Splits, settings: RunSettings) -> BaselineOutput:  # noqa: ARG002
        """See `Baseline.run`."""
        assert self.sisa is not None
        assert splits.retain is not None
        with CostMeter(settings.device) as meter:
            remaining, removal = self.sisa.forget(splits.retain, splits.forget.ids, device=str(settings.device))
        return BaselineOutput(
            model=remaining.classifier(self.vote),
            seconds=removal.seconds,
            image_passes=removal.passes,
            peak_memory=meter.peak_memory,
            facts={"share_of_retraining": removal.share, "stages": len(removal.stages)},
        )
