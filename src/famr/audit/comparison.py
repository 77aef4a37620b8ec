"""The models of an audit side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from famr.audit.measurements import ModelMeasurements
from famr.audit.names import COLLAPSED, ORIGINAL, RETRAINED, UNLEARNED
from famr.audit.roc import RocSummary
from famr.data.splits import Splits


@dataclass(frozen=True, eq=False)
class ComparedModels:
    """Models under audit and the reference models they are compared with.

    Attributes:
        splits: The request's sets.
        audited: By name: unlearned, and the original and further controls where there are any.
        references: Models retrained without the forget set.
        seed: Of bootstrap and draws.
        u_lira: U-LiRA's figures by kind of model, or why there are none; None without shadow models.
        methods: Which of the audited models are results of unlearning; the others are controls.
    """

    splits: Splits
    audited: Mapping[str, ModelMeasurements]
    references: Sequence[ModelMeasurements]
    seed: int
    u_lira: Mapping[str, RocSummary | str] | None = None
    methods: tuple[str, ...] = (UNLEARNED,)

    @property
    def unlearned(self) -> ModelMeasurements:
        """The unlearned model, the first of several."""
        return self.audited[self.methods[0]]

    @property
    def original(self) -> ModelMeasurements | None:
        """The original; None where it was not given."""
        return self.audited.get(ORIGINAL)

    @property
    def named(self) -> dict[str, ModelMeasurements]:
        """The audited models, and the first reference as "retrained"."""
        audited = {name: model for name, model in self.audited.items() if name != COLLAPSED}
        return {**audited, **({RETRAINED: self.references[0]} if self.references else {})}

    def alone(self, method: str) -> ComparedModels:
        """One method's result and the controls; it is called "unlearned" then.

        Args:
            method: One of `methods`.
        """
        controls = {name: model for name, model in self.audited.items() if name not in self.methods}
        return replace(self, audited={UNLEARNED: self.audited[method], **controls}, methods=(UNLEARNED,))

    def for_kind(self, kind: str) -> ComparedModels:
        """The models that gates of a kind are about: only those on utility take the collapsed one.

        Args:
            kind: Of the gate.
        """
        if kind == "utility" or COLLAPSED not in self.audited:
            return self
        return replace(self, audited={name: model for name, model in self.audited.items() if name != COLLAPSED})

    def with_control(self, name: str, model: ModelMeasurements) -> ComparedModels:
        """The same with one more model beside the audited ones.

        Args:
            name: Of the control.
            model: What was measured on it.
        """
        return replace(self, audited={**self.audited, name: model})
