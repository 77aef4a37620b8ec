"""The known alternatives to FAMR, one file each, behind one call: `method.unlearn(original, splits)`.

    from famr.baselines import SalUn
    outcome = SalUn().unlearn(original, splits, seed=0)

Losses are functions of tensors, numbers are the papers' where they could be had; docs/alternatives.md lists both.
"""

from __future__ import annotations

from famr.baselines.alternative import Alternative, Outcome
from famr.baselines.bad_teacher import BadTeacher
from famr.baselines.boundary_shrink import BoundaryShrink
from famr.baselines.delete import Delete
from famr.baselines.descent import Steps
from famr.baselines.fine_tune import FineTune
from famr.baselines.forsaken import Forsaken
from famr.baselines.gradient_ascent import GradientAscent
from famr.baselines.l1_sparse import L1Sparse
from famr.baselines.label_annealing import LabelAnnealing
from famr.baselines.neg_grad_plus import NegGradPlus
from famr.baselines.newton_head import NewtonHead
from famr.baselines.ours import Ours
from famr.baselines.random_labels import RandomLabels
from famr.baselines.retrain import Retrain
from famr.baselines.salun import SalUn
from famr.baselines.scrub import Scrub
from famr.baselines.sisa_removal import SisaRemoval
from famr.baselines.ssd import SSD

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
