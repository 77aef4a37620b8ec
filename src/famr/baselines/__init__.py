"""Known unlearning methods behind one call: `method.unlearn(original, splits)`.

    from famr.baselines import SalUn
    result = SalUn().unlearn(original, splits, seed=0)

Each file has a loss as a function of tensors and a frozen dataclass with the method's numbers, most of them from its
paper; docs/baselines.md lists both. To add a baseline: a file with a class that extends `session.WeightBaseline` (or
`base.Baseline`, if it does not start from the original's weights), and a line in `BASELINES`.
"""

from __future__ import annotations

from famr.baselines.bad_teacher import BadTeacher
from famr.baselines.base import Baseline, BaselineResult
from famr.baselines.boundary_shrink import BoundaryShrink
from famr.baselines.delete import Delete
from famr.baselines.descent import Steps
from famr.baselines.famr_method import FamrMethod
from famr.baselines.fine_tune import FineTune
from famr.baselines.forsaken import Forsaken
from famr.baselines.gradient_ascent import GradientAscent
from famr.baselines.l1_sparse import L1Sparse
from famr.baselines.label_annealing import LabelAnnealing
from famr.baselines.neg_grad_plus import NegGradPlus
from famr.baselines.newton_head import NewtonHead
from famr.baselines.random_labels import RandomLabels
from famr.baselines.retrain import Retrain
from famr.baselines.salun import SalUn
from famr.baselines.scrub import Scrub
from famr.baselines.sisa_removal import SisaRemoval
from famr.baselines.ssd import SSD

__all__ = [
    "BASELINES",
    "SSD",
    "BadTeacher",
    "Baseline",
    "BaselineResult",
    "BoundaryShrink",
    "Delete",
    "FamrMethod",
    "FineTune",
    "Forsaken",
    "GradientAscent",
    "L1Sparse",
    "LabelAnnealing",
    "NegGradPlus",
    "NewtonHead",
    "RandomLabels",
    "Retrain",
    "SalUn",
    "Scrub",
    "SisaRemoval",
    "Steps",
    "every_method",
]

BASELINES: dict[str, type[Baseline]] = {
    "famr": FamrMethod,
    "retrain": Retrain,
    "fine-tune": FineTune,
    "gradient-ascent": GradientAscent,
    "neggrad": NegGradPlus,
    "random-labels": RandomLabels,
    "salun": SalUn,
    "scrub": Scrub,
    "ssd": SSD,
    "bad-teacher": BadTeacher,
    "boundary-shrink": BoundaryShrink,
    "l1-sparse": L1Sparse,
    "newton-step-on-the-head": NewtonHead,
    "sisa": SisaRemoval,
    "forsaken": Forsaken,
    "label-annealing": LabelAnnealing,
    "delete": Delete,
}
"""By the name on the command line, in the order of the tables."""


def every_method() -> tuple[Baseline, ...]:
    """Every method with its default numbers, FAMR first."""
    return tuple(method() for method in BASELINES.values())
