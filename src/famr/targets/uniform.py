"""The uniform target: the paper's."""

from __future__ import annotations

from famr.losses.objective import uniform_target
from famr.targets.base import Target, TargetInputs


def uniform(inputs: TargetInputs) -> Target:
    """1/C for every class: the paper's [FAMR, Eq. (2)].

    Args:
        inputs: Only the number of classes is read.
    """
    return Target(uniform_target(inputs.classes))
