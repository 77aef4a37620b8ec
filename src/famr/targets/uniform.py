"""The uniform target: the paper's."""

from __future__ import annotations

from typing import Self

from famr.losses.objective import uniform_target
from famr.targets.base import Target, TargetInputs


class UniformTarget(Target):
    """1/C for every class: the paper's [FAMR, Eq. (2)]."""

    @classmethod
    def build(cls, inputs: TargetInputs) -> Self:
        """See `Target.build`."""
        return cls(uniform_target(inputs.classes))

    @property
    def chance(self) -> float:
        """1/C."""
        return 1 / self.probabilities.shape[-1]
