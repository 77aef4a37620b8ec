"""The gate of the membership inference attack RMIA, against non-members that are as hard as the members."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from famr.audit.comparison import ComparedModels
from famr.audit.estimate import Estimate, Estimates
from famr.audit.gates.base import NO_REFERENCE, Gate, against_references
from famr.audit.measurements import ModelMeasurements
from famr.audit.non_members import auc_of_sets, match_one_to_one, why_unequal
from famr.audit.prediction_bound import Folded, ReferenceSpread
from famr.audit.rmia import rmia_scores, true_log_probability
from famr.audit.roc import AttackScores, Interval, roc_summary
from famr.data.loaders import order

RMIA_REFERENCES = 4
FEW_IMAGES = "too few forget or held-out images"


@dataclass(frozen=True)
class RmiaImages:
    """The images of RMIA: forget images as members, non-members that are as hard, and a population.

    Attributes:
        members: Indices in the forget set.
        matched: Indices in the test set of non-members matched with the members; None: all held-out images of what was
            forgotten.
        population: Indices in the test set, of other images.
    """

    members: Tensor
    matched: Tensor | None
    population: Tensor

    @classmethod
    def choose(cls, matching: ModelMeasurements, seed: int) -> RmiaImages:
        """Held-out images of what was forgotten; where there are none, half of the test set or less, matched.

        Args:
            matching: The reference model by whose scores images are matched.
            seed: Of the draw.
        """
        everything = torch.arange(len(matching.test.targets))
        if matching.forget_test is not None:
            return cls(torch.arange(len(matching.forget.targets)), None, everything)
        members = order(len(matching.forget.targets), seed)[: len(everything) // 2].sort().values
        scores, candidates = (
            true_log_probability(each.logits, each.targets) for each in (matching.forget, matching.test)
        )
        matched = match_one_to_one(scores[members], candidates, seed)
        return cls(members, matched, everything[~torch.isin(everything, matched)])

    def log_p(self, model: ModelMeasurements) -> tuple[Tensor, Tensor, Tensor]:
        """log p of the true class: of members, of non-members, of the population.

        Args:
            model: The model.
        """
        forget, test = (true_log_probability(each.logits, each.targets) for each in (model.forget, model.test))
        if self.matched is not None:
            non_members = test[self.matched]
        else:
            assert model.forget_test is not None
            non_members = true_log_probability(model.forget_test.logits, model.forget_test.targets)
        return forget[self.members], non_members, test[self.population]


def hardness_auc(images: RmiaImages, references: Sequence[ModelMeasurements], seed: int) -> Interval | None:
    """AUC of members against non-members by the mean log p of retrained models that saw neither; None with few images.

    Args:
        images: Of the attack.
        references: None of them the one by which the images were matched.
        seed: Of the bootstrap.
    """
    members, non_members, _ = zip(*(images.log_p(reference) for reference in references), strict=True)
    return auc_of_sets(torch.stack(members).mean(dim=0), torch.stack(non_members).mean(dim=0), seed)


def rmia_images(
    references: Sequence[ModelMeasurements], models: ComparedModels
) -> tuple[RmiaImages, Interval] | Estimate:
    """The images of RMIA and the AUC of members and non-members under a retrained model; or why there is none.

    Args:
        references: The first of them matches; all others of the audit check.
        models: The whole audit.
    """
    if references[0].forget_test is None and models.splits.forgets_classes():
        return Estimate.not_available("no held-out images of what was forgotten were given as non-members")
    images = RmiaImages.choose(references[0], models.seed)
    checking = [each for each in models.references if images.matched is None or each is not references[0]]
    if not checking:
        return Estimate.not_available("one retrained model matches the non-members; it takes another to check them")
    found = hardness_auc(images, checking, models.seed)
    if found is None:
        return Estimate.not_available(FEW_IMAGES)
    reason = why_unequal(found)
    return (images, found) if reason is None else Estimate.not_available(reason)


def rmia_auc(
    model: ModelMeasurements, references: Sequence[ModelMeasurements], models: ComparedModels
) -> Interval | Estimate:
    """AUC of RMIA, or why there is none.

    The reference models saw neither set, so p(x) is the offline estimate.

    Args:
        model: The attacked model.
        references: The first `RMIA_REFERENCES` of them are the attack's reference models.
        models: The whole audit.
    """
    found = rmia_images(references, models)
    if isinstance(found, Estimate):
        return found
    images, _ = found

    def log_p(one: ModelMeasurements) -> tuple[Tensor, Tensor]:
        members, non_members, population = images.log_p(one)
        return torch.cat([members, non_members]), population

    x, z = log_p(model)
    x_references, z_references = zip(*(log_p(reference) for reference in references[:RMIA_REFERENCES]), strict=True)
    scores = rmia_scores(x, torch.stack(x_references), z, torch.stack(z_references))
    member = torch.arange(len(x)) < len(images.members)
    auc = roc_summary(AttackScores.of_one_model(scores, member), seed=models.seed).auc
    return Estimate.not_available(FEW_IMAGES) if auc is None else auc


def rmia_auc_estimate(
    model: ModelMeasurements, references: Sequence[ModelMeasurements], models: ComparedModels
) -> Estimate:
    """AUC of RMIA in the direction in which it is above ½: images that stand out as forgotten give as much away.

    Args:
        model: The attacked model.
        references: As in `rmia_auc`.
        models: The whole audit.
    """
    found = rmia_auc(model, references, models)
    return found if isinstance(found, Estimate) else either_direction(found)


def rmia_aucs(models: ComparedModels) -> Estimates:
    """AUC of each model, folded at ½; the bound for one more retrained model is made of the AUCs as they were.

    Args:
        models: The whole audit.
    """
    aucs: dict[int, float] = {}

    def folded(model: ModelMeasurements, references: Sequence[ModelMeasurements], models: ComparedModels) -> Estimate:
        found = rmia_auc(model, references, models)
        if isinstance(found, Estimate):
            return found
        aucs[id(model)] = found.value
        return either_direction(found)

    def spread(among: Sequence[Estimate], models: ComparedModels) -> ReferenceSpread:
        known = [each for each, of_each in zip(models.references, among, strict=True) if of_each.value is not None]
        return Folded(tuple(aucs[id(each)] for each in known), 0.5)

    return against_references(folded, spread)(models)


def either_direction(auc: Interval) -> Estimate:
    """½ + |AUC − ½|; the interval starts at ½ where that of the AUC contains it.

    Args:
        auc: With its interval.

    >>> either_direction(Interval(0.25, 0.125, 0.375))
    Estimate(value=0.75, low=0.625, high=0.875, why_not=None)
    """
    ends = sorted(0.5 + abs(end - 0.5) for end in (auc.low, auc.high))
    nearest = 0.5 if auc.low <= 0.5 <= auc.high else ends[0]
    return Estimate(0.5 + abs(auc.value - 0.5), nearest, ends[1])


def non_member_check(models: ComparedModels) -> dict[str, Any]:
    """Whether the non-members of RMIA are as hard as the members, as plain values.

    Args:
        models: The whole audit.
    """
    part: dict[str, Any] = {
        "needs_retrained": True,
        "says": "AUC of forget images against the non-members of RMIA under a retrained model that saw neither: 0.5.",
    }
    if not models.references:
        return {**part, "not_available": NO_REFERENCE}
    found = rmia_images(models.references, models)
    if isinstance(found, Estimate):
        return {**part, "not_available": found.why_not}
    images, auc = found
    chosen = "held-out images of what was forgotten" if images.matched is None else "matched one to one by score"
    return {**part, "non_members": chosen, "auc": auc.value, "low": auc.low, "high": auc.high}


RMIA_AUC = Gate(
    name="rmia_auc",
    title="the membership attack RMIA succeeds",
    description="AUC of RMIA, with up to four retrained models as references: forget images against held-out ones that "
    "are as hard, in the direction in which it is above 0.5.",
    threshold=0.6,
    measure=rmia_aucs,
)
