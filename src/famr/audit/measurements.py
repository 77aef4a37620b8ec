"""Everything that an audit measures on one model: its predictions, and the outcome of each attack."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from famr.audit.audit_data import ATTACK_IMAGES, CONVERSION_IMAGES, AuditData
from famr.audit.conversions import CONVERSIONS, ConversionHits, hits_after_conversion
from famr.audit.costs import Stopwatch
from famr.audit.recovery import FEW_SHOT, ClassRecovery, recover_classes
from famr.audit.relearning import RelearningConfig, RelearningRun, relearning
from famr.audit.style_probe import FEW_SHOT_STYLES, StyleHits, StyleLayer, probe_style
from famr.engine.inference import predict
from famr.metrics.membership import predict_non_members
from famr.metrics.predictions import Predictions
from famr.models import Classifier

MEMBERSHIP_DRAWS = 5
"""Times that the membership attack is trained anew: one draw may go either way on predictions it has never seen."""
RELEARNING = RelearningConfig(images=20, steps=30)
RELEARNING_SEEDS = (0, 1, 2)
RELEARNING_REFERENCES = 2
"""Reference models that relearn: it is the slowest part."""


@dataclass(frozen=True, eq=False)
class ModelMeasurements:
    """What was measured on one model; None where it was not, or cannot be for such a request.

    Attributes:
        forget: Predictions on the forget set.
        retain: Predictions on retained training images.
        test: Predictions on held-out retained images.
        forget_test: Predictions on held-out images of what was forgotten.
        non_members: How often the membership attack calls each forget image a non-member, as a share of its draws.
        recovery: Class recovery from features and head.
        style: The probe of the forgotten style.
        relearning: One run for each seed.
        conversions: Hits on the forget set after rounding and export.
    """

    forget: Predictions
    retain: Predictions
    test: Predictions
    forget_test: Predictions | None
    non_members: Tensor
    recovery: ClassRecovery | None = None
    style: StyleHits | None = None
    relearning: tuple[RelearningRun, ...] | None = None
    conversions: ConversionHits | None = None


def is_reference(name: str) -> bool:
    """Whether a model of an audit is a reference: "retrained 0", "retrained 1", …

    Args:
        name: Of the model.
    """
    return name.startswith("retrained")


def measure_models(
    models: Mapping[str, Classifier], data: AuditData, style: StyleLayer | None, quick: bool, costs: Stopwatch
) -> dict[str, ModelMeasurements]:
    """Evaluate and attack every model; the first reference goes through all that the audited models do.

    Args:
        models: By name: unlearned, original, retrained 0, retrained 1, …
        data: The images.
        style: Where to read the forgotten style; None for other requests.
        quick: Leave out relearning, rounding and export.
        costs: Counts the seconds.
    """
    original = models.get("original")
    measured = {name: measure_model(model, data, original, style, costs) for name, model in models.items()}
    if quick or not data.enough:
        return measured
    runs = relearn_models(models, data, costs)
    conversions = convert_models(models, data, costs)
    return {
        name: replace(one, relearning=runs.get(name), conversions=conversions.get(name))
        for name, one in measured.items()
    }


def measure_model(
    model: Classifier, data: AuditData, original: Classifier | None, style: StyleLayer | None, costs: Stopwatch
) -> ModelMeasurements:
    """The predictions of one model, and the attacks that do not change it.

    Args:
        model: The model.
        data: The images.
        original: Whose head is transplanted; None for reference models.
        style: Where to read the forgotten style; None for other requests.
        costs: Counts the seconds.
    """
    splits, device = data.splits, data.device
    with costs("answers"):
        forget, retain, test = (predict(model, images, device) for images in (splits.forget, data.retain, data.test))
        forget_test = None if splits.forget_test is None else predict(model, splits.forget_test, device)
    with costs("membership"):
        non_members = non_member_share(forget, retain, test, data.seed)
    recovery = style_hits = None
    if data.enough and splits.forgets_classes():
        with costs("depth"):
            few_shot = replace(FEW_SHOT, seed=data.seed)
            recovery = recover_classes(
                model, data.attack_splits, original=original, layers=(), few_shot=few_shot, device=str(device)
            )
    if data.enough and style is not None:
        with costs("style"):
            few_shot = replace(FEW_SHOT_STYLES, seed=data.seed)
            style_hits = probe_style(model, data.attack_splits, style, few_shot=few_shot, device=str(device))
    return ModelMeasurements(forget, retain, test, forget_test, non_members, recovery, style_hits)


def non_member_share(forget: Predictions, retain: Predictions, test: Predictions, seed: int) -> Tensor:
    """How often the attack of MIA-efficacy calls each forget image a non-member, over `MEMBERSHIP_DRAWS` trainings.

    Args:
        forget: Predictions to attack, on the forget set.
        retain: Predictions on members to learn from.
        test: Predictions on non-members to learn from.
        seed: Of the first draw; each further draw has the next seed.

    Returns:
        (images,), from 0 to 1.
    """
    members, non_members = (_true_probability(each)[:ATTACK_IMAGES] for each in (retain, test))
    attacked = _true_probability(forget)
    with ThreadPoolExecutor(MEMBERSHIP_DRAWS) as threads:
        draws = threads.map(
            lambda draw: predict_non_members(members, non_members, attacked, seed + draw), range(MEMBERSHIP_DRAWS)
        )
        return torch.stack(list(draws)).mean(dim=0)


def relearn_models(
    models: Mapping[str, Classifier], data: AuditData, costs: Stopwatch
) -> dict[str, tuple[RelearningRun, ...]]:
    """Relearning runs by model; none without the original, whose accuracy sets the target.

    At most half of the forget set is learned from; accuracy is measured on the rest.

    Args:
        models: By name; of the references the first `RELEARNING_REFERENCES` relearn.
        data: The images.
        costs: Counts the seconds.
    """
    if "original" not in models:
        return {}
    left_out = [name for name in models if is_reference(name)][RELEARNING_REFERENCES:]
    forget = data.splits.forget
    half_of_each_class = len(forget) // (2 * len(set(forget.targets.tolist())))
    with costs("relearning"):
        return relearning(
            {name: model for name, model in models.items() if name not in left_out},
            data.splits,
            models["original"],
            replace(RELEARNING, images=max(1, min(RELEARNING.images, half_of_each_class))),
            seeds=RELEARNING_SEEDS,
            device=str(data.device),
        )


def convert_models(models: Mapping[str, Classifier], data: AuditData, costs: Stopwatch) -> dict[str, ConversionHits]:
    """Hits of converted copies; only the unlearned model is exported to ONNX, which takes longest.

    Args:
        models: By name; of the references the first is converted.
        data: The images.
        costs: Counts the seconds.
    """
    images, device = data.forget_images(CONVERSION_IMAGES), str(data.device)
    converted = {}
    with costs("survival"):
        for name, model in models.items():
            if is_reference(name) and name != "retrained 0":
                continue
            conversions = [each for each in CONVERSIONS if each != "onnx" or name == "unlearned"]
            converted[name] = hits_after_conversion(model, images, conversions=conversions, device=device)
    return converted


def _true_probability(predictions: Predictions) -> Tensor:
    return torch.softmax(predictions.logits, dim=-1).gather(-1, predictions.targets[:, None])[:, 0]
