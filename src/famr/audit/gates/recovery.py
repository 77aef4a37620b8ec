"""Gates on what an attacker reads off features and head, beside what is read off retrained models."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from famr.audit.comparison import ComparedModels
from famr.audit.estimate import RESAMPLES, Estimate, Estimates, gap_of_replicates
from famr.audit.gates.base import Gate, against_references, gap_to_references, of_shares
from famr.audit.head_attacks import recovered_by_resampled_bias
from famr.audit.measurements import ModelMeasurements
from famr.audit.per_image import PerImage

HEAD_FITS = 0.5
"""The share of a model's own retained accuracy from which another head counts as fitting its features."""


def has_recovery(models: ComparedModels) -> bool:
    """For gates of class recovery.

    Args:
        models: Of the audit.
    """
    return models.unlearned.recovery is not None


def has_original_head(models: ComparedModels) -> bool:
    """For the gate on the original's head.

    Args:
        models: Of the audit.
    """
    recovery = models.unlearned.recovery
    return recovery is not None and "original_head" in recovery.hits


def recovered_by(attack: str) -> PerImage:
    """Hits of an attack on held-out forgotten images.

    Args:
        attack: Its name in `ClassRecovery.hits`.
    """

    def hits(model: ModelMeasurements) -> Tensor:
        assert model.recovery is not None
        return model.recovery.hits[attack].forget.double()

    return hits


def has_best_bias(models: ComparedModels) -> bool:
    """For the gate on the best bias, which takes held-out retained images.

    Args:
        models: Of the audit.
    """
    recovery = models.unlearned.recovery
    return recovery is not None and recovery.ties is not None


def best_bias_gaps(models: ComparedModels) -> Estimates:
    """Gaps of the share that the best bias recovers, with the sampling of the retained images that set the bias.

    Args:
        models: The whole audit.
    """
    every_model = [*models.audited.values(), *models.references]
    recovered = {id(model): _recovered_by_bias(model, models.seed) for model in every_model}

    def compare(model: ModelMeasurements, references: Sequence[ModelMeasurements], _: ComparedModels) -> Estimate:
        expected = torch.stack([recovered[id(reference)] for reference in references]).mean(dim=0)
        difference = recovered[id(model)] - expected
        return gap_of_replicates(float(difference[0]), difference[1:])

    return against_references(compare, of_shares(recovered_by("best_bias")))(models)


def _recovered_by_bias(model: ModelMeasurements, seed: int) -> Tensor:
    """The share of the forgotten images that the best bias recovers; then that of each bootstrap sample."""
    assert model.recovery is not None
    assert model.recovery.ties is not None
    found = recovered_by("best_bias")(model).mean()
    return torch.cat([found[None], recovered_by_resampled_bias(model.recovery.ties, RESAMPLES, seed)])


BEST_BIAS_GAP = Gate(
    name="best_bias_gap",
    title="a shifted bias recovers the class to another degree than in retrained models",
    description="The best bias for the forgotten classes, at 1 % of retained accuracy: |held-out forget accuracy − "
    "retrained|.",
    threshold=0.1,
    measure=best_bias_gaps,
    kind="depth",
    applies=has_best_bias,
)

PROBE_GAP = Gate(
    name="probe_gap",
    title="a linear probe on the features recovers the class to another degree than in retrained models",
    description="A linear probe with five images a class: |held-out forget accuracy − retrained|.",
    threshold=0.1,
    measure=gap_to_references(recovered_by("probe"), of_shares(recovered_by("probe"))),
    kind="depth",
    applies=has_recovery,
)

NEIGHBOURS_GAP = Gate(
    name="neighbours_gap",
    title="nearest neighbours in feature space recover the class to another degree than in retrained models",
    description="Nearest neighbours among five images a class: |held-out forget accuracy − retrained|.",
    threshold=0.1,
    measure=gap_to_references(recovered_by("neighbours"), of_shares(recovered_by("neighbours"))),
    kind="depth",
    applies=has_recovery,
)


def recovered_by_original_head(model: ModelMeasurements) -> Tensor:
    """Hits with the original's head on held-out forgotten images; none where that head does not fit the features.

    On features of another training from random weights a head is right at random, for whichever class it likes: it
    recovers nothing there, as it does not know the retained classes either.

    Args:
        model: The model.
    """
    assert model.recovery is not None
    hits = model.recovery.hits["original_head"]
    own = model.recovery.hits["as_it_is"].retain_accuracy
    fits = own is None or hits.retain_accuracy is None or hits.retain_accuracy >= HEAD_FITS * own
    return hits.forget.double() if fits else torch.zeros_like(hits.forget, dtype=torch.double)


ORIGINAL_HEAD_GAP = Gate(
    name="original_head_gap",
    title="the original head recovers the class to another degree than in retrained models",
    description="The original's head in place of the model's own, where it keeps half of the retained accuracy: "
    "|held-out forget accuracy − retrained|.",
    threshold=0.1,
    measure=gap_to_references(recovered_by_original_head, of_shares(recovered_by_original_head)),
    kind="depth",
    applies=has_original_head,
)
