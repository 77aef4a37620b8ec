"""SISA behind the same call: only models that were trained in shards and slices can forget so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Self

import torch

from famr.baselines.alternative import Alternative, Made, Meter
from famr.data.splits import Splits
from famr.engine.devices import Precision
from famr.errors import RequestError
from famr.models import Classifier
from famr.sisa.ensemble import Sisa
from famr.sisa.voting import Vote


@dataclass(frozen=True)
class SisaRemoval(Alternative):
    """Go back to before the forgotten images and train on without them, shard by shard [Bourtoule et al. 2021].

    Needs the ensemble that `famr.sisa.ensemble.train_sisa` made of the same training images; the original is then that
    ensemble's classifier. Numbers (shards, slices, training) are the ensemble's own. BatchNorm takes new statistics.
    """

    sisa: Sisa | None = field(default=None, compare=False)
    vote: Vote = "majority"

    name: ClassVar[str] = "SISA"
    paper: ClassVar[str] = "Bourtoule et al. 2021"

    def trials(self) -> Iterator[Self]:
        """Itself alone: nothing is left to choose once the ensemble is trained."""
        yield self

    def to_json(self) -> dict[str, Any]:
        """Its name and its numbers, as plain values."""
        if self.sisa is None:
            return {"name": self.name, "vote": self.vote, "plan": None}
        training = asdict(self.sisa.training)
        return {"name": self.name, "vote": self.vote, "plan": asdict(self.sisa.plan), "training": training}

    def check(self, original: Classifier, splits: Splits) -> None:
        """Also refuse without an ensemble."""
        super().check(original, splits)
        if self.sisa is None:
            raise RequestError(
                "SISA cannot unlearn from a single trained model: it needs models that were trained in shards.",
                where="SisaRemoval(sisa=None)",
                fix="Train them with famr.sisa.ensemble.train_sisa and pass the result: SisaRemoval(sisa).",
            )

    def made(
        self,
        original: Classifier,  # noqa: ARG002
        splits: Splits,
        seed: int,  # noqa: ARG002
        device: torch.device,
        precision: Precision,  # noqa: ARG002
    ) -> Made:
        """The ensemble without the forget set; seeds and precision are those it was trained with."""
        assert self.sisa is not None
        assert splits.retain is not None
        with Meter(device) as meter:
            left, removal = self.sisa.forget(splits.retain, splits.forget.ids, device=str(device))
        facts = {"share_of_retraining": removal.share, "stages": len(removal.stages)}
        model = left.classifier(self.vote)
        return Made(model, removal.seconds, removal.passes, meter.peak_memory, facts=facts)
