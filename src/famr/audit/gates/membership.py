"""Gates of membership inference attacks: MIA-efficacy, RMIA and U-LiRA."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from famr.audit.comparison import ComparedModels
from famr.audit.estimate import Estimate, Estimates
from famr.audit.gates.base import Gate, against_references, gap_to_references
from famr.audit.measurements import ModelMeasurements
from famr.audit.per_image import non_member
from famr.audit.rmia import rmia_scores, true_log_probability
from famr.audit.roc import AttackScores, RocSummary, roc_summary
from famr.data.loaders import order

RMIA_REFERENCES = 4

MIA_EFFICACY_GAP = Gate(
    name="mia_efficacy_gap",
    title="a membership attack gives another result than on retrained models",
    description="|MIA-efficacy − retrained|: the share of the forget set that an attack calls non-members.",
    threshold=0.05,
    measure=gap_to_references(non_member),
)


def rmia_auc_estimate(
    model: ModelMeasurements, references: Sequence[ModelMeasurements], models: ComparedModels
) -> Estimate:
    """AUC of RMIA: forget images as members, one half of the held-out images as non-members, one as population.

    The reference models saw neither, so p(x) is the offline estimate.

    Args:
        model: The attacked model.
        references: The first `RMIA_REFERENCES` of them are the attack's reference models.
        models: The whole audit.
    """
    shuffled = order(len(model.test.targets), models.seed)
    non_members, population = shuffled[: len(shuffled) // 2], shuffled[len(shuffled) // 2 :]

    def log_p(one: ModelMeasurements) -> tuple[Tensor, Tensor]:
        forget, test = (true_log_probability(each.logits, each.targets) for each in (one.forget, one.test))
        return torch.cat([forget, test[non_members]]), test[population]

    x, z = log_p(model)
    x_references, z_references = zip(*(log_p(reference) for reference in references[:RMIA_REFERENCES]), strict=True)
    scores = rmia_scores(x, torch.stack(x_references), z, torch.stack(z_references))
    member = torch.arange(len(x)) < len(model.forget.targets)
    auc = roc_summary(AttackScores.of_one_model(scores, member), seed=models.seed).auc
    if auc is None:
        return Estimate.not_available("too few forget or held-out images")
    return Estimate(auc.value, auc.low, auc.high)


RMIA_AUC = Gate(
    name="rmia_auc",
    title="the membership attack RMIA succeeds",
    description="AUC of RMIA, with up to four retrained models as references: forget against held-out images.",
    threshold=0.6,
    measure=against_references(rmia_auc_estimate),
)


def u_lira_accuracies(models: ComparedModels) -> Estimates:
    """Accuracy of deciding "unlearned or retrained" for shadow models, image by image.

    Args:
        models: With figures of U-LiRA.
    """
    assert models.u_lira is not None  # the gate does not apply without
    return Estimates({name: _u_lira_accuracy(models.u_lira[name]) for name in (*models.audited, "retrained")})


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
