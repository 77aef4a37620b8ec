"""Gates on accuracies, and on the rank of the forgotten class among the logits."""

from __future__ import annotations

from collections.abc import Sequence

from famr.audit.comparison import ComparedModels
from famr.audit.estimate import Estimate, mean_estimate, mean_gap_estimate
from famr.audit.gates.base import Gate, against_references, each_model, forgets_classes, gap_to_references, of_gaps
from famr.audit.gates.membership import where_the_attack_works
from famr.audit.measurements import ModelMeasurements
from famr.audit.per_image import AVERAGE_GAP_MEASURES, difference, hits_on, share_above_true

FORGET_ACCURACY_GAP = Gate(
    name="forget_accuracy_gap",
    title="accuracy on the forget set differs from retrained models",
    description="|For-Acc − retrained| on the forget set.",
    threshold=0.05,
    measure=gap_to_references(hits_on("forget")),
)

HELD_OUT_FORGET_ACCURACY_GAP = Gate(
    name="held_out_forget_accuracy_gap",
    title="accuracy on held-out images of what was forgotten differs from retrained models",
    description="|For-Acc − retrained| on held-out images of what was forgotten.",
    threshold=0.05,
    measure=gap_to_references(hits_on("forget_test")),
    applies=lambda models: models.splits.forget_test is not None,
)

RETAIN_ACCURACY_GAP = Gate(
    name="retain_accuracy_gap",
    title="accuracy on retained classes differs from retrained models",
    description="|Ret-Acc − retrained| on held-out retained images.",
    threshold=0.02,
    measure=gap_to_references(hits_on("test")),
    kind="utility",
)


def average_gap_estimate(
    model: ModelMeasurements, references: Sequence[ModelMeasurements], models: ComparedModels
) -> Estimate:
    """Avg. Gap: mean of |model − mean of the reference models| over four measures [Fan et al. 2024].

    Args:
        model: The model under audit.
        references: What it is compared with.
        models: The whole audit.
    """
    differences = [difference(model, references, values) for values in AVERAGE_GAP_MEASURES.values()]
    return mean_gap_estimate(differences, models.seed)


AVERAGE_GAP = Gate(
    name="average_gap",
    title="the mean gap to retrained models",
    description="Avg. Gap: the mean gap of forget, retain and test accuracy and MIA-efficacy, where that attack works.",
    threshold=0.02,
    measure=against_references(where_the_attack_works(average_gap_estimate), of_gaps),
    kind="likeness",
)

FORGOTTEN_RANK_GAP = Gate(
    name="forgotten_rank_gap",
    title="the rank of the forgotten class differs from retrained models",
    description="|share of the remaining classes that are likelier than the forgotten one − retrained| on the forget "
    "set.",
    threshold=0.2,
    measure=gap_to_references(share_above_true),
    applies=forgets_classes,
)

FORGET_ACCURACY = Gate(
    name="forget_accuracy",
    title="accuracy on the forget set",
    description="For-Acc on the forget set.",
    threshold=0.05,
    measure=each_model(lambda model, models: mean_estimate(hits_on("forget")(model), models.seed)),
    applies=forgets_classes,
    needs_retrained=False,
)
