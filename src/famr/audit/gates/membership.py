"""Gates of membership inference attacks: MIA-efficacy and U-LiRA."""

from __future__ import annotations

from famr.audit.comparison import ComparedModels
from famr.audit.estimate import Estimate, Estimates
from famr.audit.gates.base import Gate, gap_to_references
from famr.audit.names import RETRAINED
from famr.audit.per_image import non_member
from famr.audit.roc import RocSummary

MIA_EFFICACY_GAP = Gate(
    name="mia_efficacy_gap",
    title="a membership attack gives another result than on retrained models",
    description="|MIA-efficacy − retrained|: the share of the forget set that an attack calls non-members.",
    threshold=0.05,
    measure=gap_to_references(non_member),
)


def u_lira_accuracies(models: ComparedModels) -> Estimates:
    """Accuracy of deciding "unlearned or retrained" for shadow models, image by image.

    Args:
        models: With figures of U-LiRA.
    """
    assert models.u_lira is not None  # the gate does not apply without
    attacked = [name for name in (*models.audited, RETRAINED) if name in models.u_lira]
    control = _u_lira_accuracy(models.u_lira[RETRAINED])
    if (ends := control.ends()) is not None and not ends[0] <= 0.5 <= ends[1]:
        reason = (
            "the attack tells one half of the retrained shadow models from the other, at an accuracy of "
            f"{control.value:.3f} [{ends[0]:.3f}, {ends[1]:.3f}]: they are not alike, or too few"
        )
        return Estimates({name: Estimate.not_available(reason) for name in attacked})
    return Estimates({name: _u_lira_accuracy(models.u_lira[name]) for name in attacked})


def _u_lira_accuracy(found: RocSummary | str) -> Estimate:
    if isinstance(found, str):
        return Estimate.not_available(found)
    if found.accuracy is None:
        return Estimate.not_available("too few forget images for the accuracy of U-LiRA")
    return Estimate(found.accuracy.value, found.accuracy.low, found.accuracy.high)


U_LIRA_ACCURACY = Gate(
    name="u_lira_accuracy",
    title="the membership attack U-LiRA succeeds",
    description="U-LiRA: accuracy of telling models that unlearned from retrained ones, image by image (original: "
    "LiRA).",
    threshold=0.55,
    measure=u_lira_accuracies,
    applies=lambda models: models.u_lira is not None,
)
