"""Anchors keep the model near the original while it forgets: A(θ, θ₀) in J(θ) = L_forget(θ) + Σ λ·A(θ, θ₀).

Weight anchors measure distance in weight space and can be the metric of the natural step; the function-space anchor
compares predictions on retained images. To add a weight anchor: a file with a subclass of `WeightAnchor`, and a line in
`ANCHORS`; the first line of its docstring is the help text of `--anchor`.
"""

from __future__ import annotations

from famr.anchors.base import Anchor, AnchorInputs, AnchorTerm, Source, WeightAnchor, original_weights
from famr.anchors.fisher import FisherAnchor
from famr.anchors.function import FunctionAnchor
from famr.anchors.kfac import KFACAnchor
from famr.anchors.l2 import L2Anchor

__all__ = [
    "ANCHORS",
    "Anchor",
    "AnchorInputs",
    "AnchorTerm",
    "FisherAnchor",
    "FunctionAnchor",
    "KFACAnchor",
    "L2Anchor",
    "Source",
    "WeightAnchor",
    "original_weights",
]

ANCHORS: dict[str, type[WeightAnchor]] = {
    "l2": L2Anchor,
    "fisher": FisherAnchor,
    "kfac": KFACAnchor,
}
