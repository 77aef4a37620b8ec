"""What an audit measures without a threshold, as plain values; each part says whether it needs a retrained model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from famr.audit.audit_data import CKA_IMAGES, AuditData
from famr.audit.cka import cka_to_models
from famr.audit.class_changes import ClassChange, class_changes, loss_of_nearest, nearness
from famr.audit.comparison import ComparedModels
from famr.audit.gates.base import NO_REFERENCE
from famr.audit.gates.rmia import non_member_check
from famr.audit.per_image import average_gap_means
from famr.audit.relearning import relearning_json
from famr.audit.roc import auc
from famr.audit.two_sample import NEIGHBOURS
from famr.metrics.calibration import expected_calibration_error
from famr.metrics.forgetting import kl_divergence
from famr.metrics.retraining import tug_of_war
from famr.models import Classifier

NO_ORIGINAL = "not available: the original was not given"


def ungated_measurements(models: ComparedModels) -> dict[str, Any]:
    """Everything that follows from the models' measurements; parts that were not measured are left out.

    Args:
        models: Of the audit.
    """
    parts = {
        "tug_of_war": tugs_of_war(models),
        "calibration": calibration(models),
        "before_and_after": update_leakage(models),
        "non_members": non_member_check(models),
        "membership_attack": membership_power(models),
        "collateral": retained_classes(models),
        "depth": _by_model(models, "recovery", "Held-out accuracies of attacks with five images a class."),
        "style": _by_model(models, "style", "Probes."),
        "relearning": relearn_times(models),
        "survival": _by_model(models, "conversions", "Forget accuracy as it is and after each change."),
        "visual_prompt": _by_model(models, "prompt", "Accuracies before and under a visual prompt."),
        "retained_tuning": _by_model(models, "retained_tuning", "Forget set after tuning on retained images alone."),
        "perturbed": _by_model(models, "perturbed", "Forget accuracy on slightly changed images."),
    }
    return {name: part for name, part in parts.items() if part is not None}


def _by_model(models: ComparedModels, attribute: str, description: str) -> dict[str, Any] | None:
    """One kind of measurement of every model that has it."""
    measured = {name: getattr(model, attribute) for name, model in models.named.items()}
    values = {name: value.to_json() for name, value in measured.items() if value is not None}
    return {"needs_retrained": False, "says": description, **values} if values else None


def tugs_of_war(models: ComparedModels) -> dict[str, Any]:
    """ToW and ToW-MIA of each model to the mean of the reference models; of the first of them to the remaining ones.

    Args:
        models: Of the audit.
    """
    part: dict[str, Any] = {"needs_retrained": True, "says": "Π (1 − gap) of forget, retain and test; 1 is a match."}
    if not models.references:
        return {**part, "not_available": NO_REFERENCE}
    pairs = {name: (model, models.references) for name, model in models.audited.items()}
    if len(models.references) > 1:
        pairs["retrained"] = (models.references[0], models.references[1:])
    measures = {"tow": ("forget", "retain", "test"), "tow_mia": ("mia", "retain", "test")}
    for name, (model, references) in pairs.items():
        own, expected = average_gap_means([model]), average_gap_means(references)
        part[name] = {
            kind: tug_of_war({each: own[each] for each in names}, {each: expected[each] for each in names})
            for kind, names in measures.items()
        }
    return part


def calibration(models: ComparedModels) -> dict[str, Any]:
    """Expected calibration error of each model.

    Args:
        models: Of the audit.
    """
    errors = {
        name: expected_calibration_error(model.test.logits, model.test.targets) for name, model in models.named.items()
    }
    return {"needs_retrained": False, "says": "ECE on held-out retained images.", "ece": errors}


def membership_power(models: ComparedModels) -> dict[str, Any]:
    """On which models the attack of MIA-efficacy works.

    Args:
        models: Of the audit.
    """
    says = "AUC of the attack of MIA-efficacy on retained and test images that it did not learn from: 0.5 is guessing."
    aucs = {name: model.membership_auc for name, model in models.named.items() if model.membership_auc is not None}
    return {"needs_retrained": False, "says": says, "auc": {name: asdict(auc) for name, auc in aucs.items()}}


def update_leakage_auc(original: Tensor, unlearned: Tensor, original_test: Tensor, unlearned_test: Tensor) -> float:
    """AUC of the attack that has both models and calls those images forgotten whose predictions moved most.

    The score is KL(p_original ‖ p_unlearned) [Chen et al. 2021]. It is near 1 for any method that works, so it has no
    threshold.

    Args:
        original: Logits of the original on forget images, (images, classes).
        unlearned: Logits of the unlearned model on the same images.
        original_test: Logits of the original on held-out images, (images', classes).
        unlearned_test: Logits of the unlearned model on the same images.
    """
    moved = [kl_divergence(original, unlearned), kl_divergence(original_test, unlearned_test)]
    scores = torch.cat(moved)
    return auc(scores, torch.arange(len(scores)) < len(original))


def update_leakage(models: ComparedModels) -> dict[str, Any]:
    """What an attacker learns who has the model before and after unlearning.

    Args:
        models: Of the audit.
    """
    part: dict[str, Any] = {
        "needs_retrained": False,
        "says": "AUC of telling forget from held-out images by how far the predictions moved; near 1 for every method "
        "that works.",
    }
    before, after = models.original, models.unlearned
    if before is None:
        return {**part, "not_available": NO_ORIGINAL}
    logits = (before.forget.logits, after.forget.logits, before.test.logits, after.test.logits)
    return {**part, "auc": update_leakage_auc(*logits)}


def retained_classes(models: ComparedModels) -> dict[str, Any]:
    """Held-out accuracy of each retained class before and after, the largest loss first.

    Args:
        models: Of the audit.
    """
    description = "Held-out accuracy of each retained class, before and after; the one that lost most first."
    part: dict[str, Any] = {"needs_retrained": False, "says": description}
    before, after, splits = models.original, models.unlearned, models.splits
    if before is None:
        return {**part, "not_available": NO_ORIGINAL}
    forgotten = torch.tensor(splits.forgotten_classes(), dtype=torch.long)
    changes = class_changes(before.test, after.test, nearness(before.forget.logits, forgotten))
    names = splits.labels or tuple(str(index) for index in range(before.test.logits.shape[-1]))
    return {
        **part,
        "mean_change_of_nearest": loss_of_nearest(changes, NEIGHBOURS),
        "classes": [_class_json(change, names) for change in changes],
    }


def _class_json(change: ClassChange, names: Sequence[str]) -> dict[str, Any]:
    return {"class": names[change.target], **asdict(change), "change": change.change}


def relearn_times(models: ComparedModels) -> dict[str, Any] | None:
    """The relearning runs of each model that has any.

    Args:
        models: Of the audit.
    """
    runs = {name: model.relearning for name, model in models.named.items() if model.relearning is not None}
    if not runs:
        return None
    return {
        "needs_retrained": False,
        "says": "Area under the curve of accuracy on other forget images, and steps until 95 % of the original's.",
        **{name: relearning_json(of_model) for name, of_model in runs.items()},
    }


def cka_by_layer(
    unlearned: Classifier, original: Classifier | None, retrained: Sequence[Classifier], data: AuditData
) -> dict[str, Any]:
    """CKA of the unlearned model to the original and a retrained one, and of two retrained ones to each other.

    Args:
        unlearned: The model under audit.
        original: Before unlearning; None where it was not given.
        retrained: Reference models; the first two are compared.
        data: The images.
    """
    sets = {"forget": data.forget_images(CKA_IMAGES), "retain": data.test_images(CKA_IMAGES)}
    before = {} if original is None else {"original": original}
    pairs = {"unlearned": (unlearned, {**before, **dict(zip(["retrained"], retrained, strict=False))})}
    if retrained:
        others = {**before, **dict(zip(["another retrained"], retrained[1:], strict=False))}
        pairs["retrained"] = (retrained[0], others)
    similarity = {name: cka_to_models(model, others, sets, data.device) for name, (model, others) in pairs.items()}
    return {
        "needs_retrained": True,
        "says": "Centred kernel alignment by layer; good is near retrained, and no nearer to the original than "
        "retrained is.",
        **_without_nan(similarity),
    }


def _without_nan(values: Any) -> Any:
    """None where there was nothing to compare: JSON knows no NaN."""
    if isinstance(values, dict):
        return {name: _without_nan(value) for name, value in values.items()}
    return None if math.isnan(values) else values


def notes(stated: Mapping[str, Any]) -> list[str]:
    """The measurements that users look for first, in words.

    Args:
        stated: All measurements without a threshold.
    """
    lines = [
        f"ECE on held-out retained images: {name} {value:.4f}" for name, value in stated["calibration"]["ece"].items()
    ]
    for name in ("unlearned", "retrained"):
        if name in stated["tug_of_war"]:
            tow, mia = (stated["tug_of_war"][name][kind] for kind in ("tow", "tow_mia"))
            lines.append(f"ToW {tow:.3f}, ToW-MIA {mia:.3f}: {name}")
    if "auc" in stated["before_and_after"]:
        value = stated["before_and_after"]["auc"]
        lines.append(f"An attacker with both models tells forget images from held-out ones with AUC {value:.3f}.")
    lines += [
        f"Class {change['class']}: {100 * change['before']:.1f} → {100 * change['after']:.1f} %"
        for change in stated["collateral"].get("classes", [])[:NEIGHBOURS]
        if change["change"] < 0
    ]
    missing = stated.get("survival", {}).get("unlearned", {}).get("not_available", {})
    return [*lines, *(f"{conversion}: {reason}" for conversion, reason in missing.items())]
