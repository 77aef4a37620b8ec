"""The models of an audit side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from famr.audit.measurements import ModelMeasurements
from famr.audit.roc import RocSummary
from famr.data.splits import Splits


@dataclass(frozen=True, eq=False)
class ComparedModels:
    """Models under audit and the reference models they are compared with.

    Attributes:
        splits: The request's sets.
        audited: By name: unlearned, and original where it was given.
        references: Models retrained without the forget set.
        seed: Of bootstrap and draws.
        u_lira: U-LiRA's figures by kind of model, or why there are none; None without shadow models.
    """

    splits: Splits
    audited: Mapping[str, ModelMeasurements]
    references: Sequence[ModelMeasurements]
    seed: int
    u_lira: Mapping[str, RocSummary | str] | None = None

    @property
    def unlearned(self) -> ModelMeasurements:
        """The unlearned model."""
        return self.audited["unlearned"]

    @property
    def original(self) -> ModelMeasurements | None:
        """The original; None where it was not given."""
        return self.audited.get("original")

    @property
    def named(self) -> dict[str, ModelMeasurements]:
        """The audited models, and the first reference as "retrained"."""
        return {**self.audited, **({"retrained": self.references[0]} if self.references else {})}
