"""Gates of membership inference attacks: MIA-efficacy and U-LiRA."""

from __future__ import annotations

from collections.abc import Sequence

from famr.audit.comparison import ComparedModels
from famr.audit.estimate import Estimate, Estimates, gap_estimate
from famr.audit.gates.base import Compare, Gate, against_references, of_gaps
from famr.audit.measurements import ModelMeasurements
from famr.audit.membership_attack import why_powerless
from famr.audit.names import RETRAINED
from famr.audit.per_image import difference, non_member
from famr.audit.roc import RocSummary


def where_the_attack_works(compare: Compare) -> Compare:
    """A comparison by what the membership attack calls the forget set; not available where it is as random as a coin.

    The attack has to tell members from non-members on the model and on all that it is compared with.

    Args:
        compare: The comparison.
    """

    def compare_attacked(
        model: ModelMeasurements, references: Sequence[ModelMeasurements], models: ComparedModels
    ) -> Estimate:
        for attacked, whose in ((model, "on this model "), *((each, "on a retrained model ") for each in references)):
            if (reason := why_powerless(attacked.membership_auc)) is not None:
                return Estimate.not_available(whose + reason)
        return compare(model, references, models)

    return compare_attacked


def mia_efficacy_gap(
    model: ModelMeasurements, references: Sequence[ModelMeasurements], models: ComparedModels
) -> Estimate:
    """|MIA-efficacy − mean of the reference models|.

    Args:
        model: The model under audit.
        references: What it is compared with.
        models: The whole audit.
    """
    return gap_estimate(difference(model, references, non_member), models.seed)


MIA_EFFICACY_GAP = Gate(
    name="mia_efficacy_gap",
    title="a membership attack gives another result than on retrained models",
    description="|MIA-efficacy − retrained|: the share of the forget set that an attack calls non-members, where "
    "it tells retained training images from test images.",
    threshold=0.05,
    measure=against_references(where_the_attack_works(mia_efficacy_gap), of_gaps),
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
