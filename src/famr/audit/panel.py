"""Everybody's answers side by side, and a gate made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from famr.audit.verdict import Check, Figure, check
from famr.audit.witness import Witness

NO_REFERENCE = "no retrained model was given"
ONE_REFERENCE = "a retrained model can be held against others only, and one was given"

Against = Callable[[Witness, Sequence[Witness]], Figure]
"""A model's figure against retrained ones."""


@dataclass(frozen=True, eq=False)
class Panel:
    """The audited models by name, the retrained ones, and the thresholds."""

    witnesses: Mapping[str, Witness]
    references: Sequence[Witness]
    limits: Mapping[str, float]
    seed: int

    def against_retrained(self, name: str, says: str, of: Against) -> Check:
        """A gate on the distance to retrained models; their distances to each other are the measure."""
        figures, among = self.figures(of)
        return check(name, says, self.limits[name], figures, among_retrained=among)

    def figures(self, of: Against) -> tuple[dict[str, Figure], list[Figure]]:
        """The figure of each model against the retrained ones; and of each of these against the rest."""
        if not self.references:
            return {name: Figure.not_available(NO_REFERENCE) for name in self.witnesses}, []
        figures = {name: of(witness, self.references) for name, witness in self.witnesses.items()}
        if len(self.references) < 2:
            return {**figures, "retrained": Figure.not_available(ONE_REFERENCE)}, []
        found = [of(one, [rest for rest in self.references if rest is not one]) for one in self.references]
        return {**figures, "retrained": found[0]}, found

    @property
    def everybody(self) -> dict[str, Witness]:
        """The audited models, and the first of the retrained ones."""
        return {**self.witnesses, **({"retrained": self.references[0]} if self.references else {})}

    def alone(self, name: str, says: str, of: Callable[[Witness], Figure | None]) -> Check:
        """A gate that takes no retrained model; one that was given has to pass it all the same."""
        found = {model: of(witness) for model, witness in self.everybody.items()}
        figures = {model: figure for model, figure in found.items() if figure is not None}
        return check(name, says, self.limits[name], figures, needs_retrained=False)
