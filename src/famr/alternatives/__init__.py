"""The known alternatives to FAMR, one file each, behind one call: `method.unlearn(original, splits)`.

    from famr.alternatives import SalUn
    outcome = SalUn().unlearn(original, splits, seed=0)

Losses are functions of tensors, numbers are the papers' where they could be had; docs/alternatives.md lists both.
"""

from __future__ import annotations

from famr.alternatives.alternative import Alternative, Outcome
from famr.alternatives.bad_teacher import BadTeacher
from famr.alternatives.boundary_shrink import BoundaryShrink
from famr.alternatives.delete import Delete
from famr.alternatives.descent import Steps
from famr.alternatives.fine_tune import FineTune
from famr.alternatives.forsaken import Forsaken
from famr.alternatives.gradient_ascent import GradientAscent
from famr.alternatives.l1_sparse import L1Sparse
from famr.alternatives.label_annealing import LabelAnnealing
from famr.alternatives.neg_grad_plus import NegGradPlus
from famr.alternatives.newton_head import NewtonHead
from famr.alternatives.ours import Ours
from famr.alternatives.random_labels import RandomLabels
from famr.alternatives.retrain import Retrain
from famr.alternatives.salun import SalUn
from famr.alternatives.scrub import Scrub
from famr.alternatives.sisa_removal import SisaRemoval
from famr.alternatives.ssd import SSD

__all__ = [
    "SSD",
    "Alternative",
    "BadTeacher",
    "BoundaryShrink",
    "Delete",
    "FineTune",
    "Forsaken",
    "GradientAscent",
    "L1Sparse",
    "LabelAnnealing",
    "NegGradPlus",
    "NewtonHead",
    "Ours",
    "Outcome",
    "RandomLabels",
    "Retrain",
    "SalUn",
    "Scrub",
    "SisaRemoval",
    "Steps",
    "every_method",
]


def every_method() -> tuple[Alternative, ...]:
    """FAMR and each alternative with its default numbers, in the order of the tables."""
    return (
        Ours(),
        Retrain(),
        FineTune(),
        GradientAscent(),
        NegGradPlus(),
        RandomLabels(),
        SalUn(),
        Scrub(),
        SSD(),
        BadTeacher(),
        BoundaryShrink(),
        L1Sparse(),
        NewtonHead(),
        SisaRemoval(),
        Forsaken(),
        LabelAnnealing(),
        Delete(),
    )
