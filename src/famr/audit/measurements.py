"""Everything that an audit measures on one model: its predictions, and the outcome of each attack."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from famr.audit.audit_data import CONVERSION_IMAGES, AuditData
from famr.audit.conversions import CONVERSIONS, ConversionHits, hits_after_conversion
from famr.audit.costs import Stopwatch
from famr.audit.estimate import Estimate
from famr.audit.membership_attack import membership_auc, membership_calls
from famr.audit.names import HEAD_ONLY, NEVER_SAW, ORIGINAL, is_reference, reference_name
from famr.audit.perturbed import PerturbedHits, recognise_perturbed
from famr.audit.recovery import FEW_SHOT, ClassRecovery, recover_classes
from famr.audit.relearning import RelearningConfig, RelearningRun, relearning
from famr.audit.retained_tuning import RetainedTuning, tune_on_retained
from famr.audit.style_probe import FEW_SHOT_STYLES, StyleHits, StyleLayer, probe_style
from famr.audit.visual_prompt import PromptConfig, PromptRecovery, recover_by_prompt
from famr.engine.inference import predict
from famr.metrics.predictions import Predictions
from famr.models import Classifier

RELEARNING = RelearningConfig()
RELEARNING_SEEDS = (0, 1)
PROMPT = PromptConfig()
TRAINED_REFERENCES = 5
"""The most reference models on which attacks are run that train: they are the slowest part."""
PERTURBED_IMAGES = 500
"""Forget images of which changed copies are predicted."""


@dataclass(frozen=True, eq=False)
class ModelMeasurements:
    """What was measured on one model; None where it was not, or cannot be for such a request.

    Attributes:
        forget: Predictions on the forget set.
        retain: Predictions on retained training images.
        test: Predictions on held-out retained images.
        forget_test: Predictions on held-out images of what was forgotten.
        non_members: 1 where the membership attack calls a forget image a non-member, (draws, images).
        membership_auc: Of that attack on retained and test images that it did not learn from.
        recovery: Class recovery from features and head.
        style: The probe of the forgotten style.
        relearning: One run for each seed.
        conversions: Hits on the forget set after rounding and export.
        prompt: Recovery by a visual prompt.
        retained_tuning: Predictions on forget images after fine-tuning on retained ones.
        perturbed: Hits on slightly changed forget images.
    """

    forget: Predictions
    retain: Predictions
    test: Predictions
    forget_test: Predictions | None
    non_members: Tensor
    membership_auc: Estimate | None = None
    recovery: ClassRecovery | None = None
    style: StyleHits | None = None
    relearning: tuple[RelearningRun, ...] | None = None
    conversions: ConversionHits | None = None
    prompt: PromptRecovery | None = None
    retained_tuning: RetainedTuning | None = None
    perturbed: PerturbedHits | None = None


Check = Callable[[Mapping[str, ModelMeasurements]], None]
"""Predictions of all models by name → an error where one must not be used."""


def measure_models(
    models: Mapping[str, Classifier],
    data: AuditData,
    style: StyleLayer | None,
    quick: bool,
    costs: Stopwatch,
    check: Check | None = None,
) -> dict[str, ModelMeasurements]:
    """Evaluate and attack every model; attacks that train are run on at most `TRAINED_REFERENCES` references.

    Args:
        models: By name: unlearned, original, retrained 0, retrained 1, …, and others to audit.
        data: The images.
        style: Where to read the forgotten style; None for other requests.
        quick: Leave out the attacks that train or change the model or the images.
        costs: Counts the seconds, and tells how many are left.
        check: Called with the predictions of all models before the first attack; None: nothing is checked.
    """
    original = models.get(ORIGINAL)
    left_out = [name for name in models if is_reference(name)][TRAINED_REFERENCES:]
    predicted = {name: measure_predictions(model, data, costs) for name, model in models.items()}
    if check is not None:
        check(predicted)
    measured = {}
    for name, model in models.items():
        found = with_probes(predicted[name], model, data, original, style, costs)
        if not quick and data.enough and name not in left_out:
            found = with_attacks(found, name, model, data, original, costs)
        measured[name] = found
        costs.done(name, len(measured), len(models))
    return measured


def with_attacks(
    measured: ModelMeasurements,
    name: str,
    model: Classifier,
    data: AuditData,
    original: Classifier | None,
    costs: Stopwatch,
) -> ModelMeasurements:
    """The same with the attacks that train, and those that change the model or the images.

    Args:
        measured: What was measured on the model.
        name: Of the model; which conversions it goes through depends on it.
        model: The model; it is not changed.
        data: The images.
        original: By whose accuracy relearning is measured; None: the model does not relearn.
        costs: Counts the seconds.
    """
    splits, device, seed = data.splits, str(data.device), data.seed
    relearned = prompt = None
    if original is not None:
        config = replace(RELEARNING, images=_learned_of_each_class(data, RELEARNING.images))
        with costs("relearning"):
            runs = relearning({name: model}, splits, original, config, seeds=RELEARNING_SEEDS, device=device)
            relearned = runs[name]
    if splits.forgets_classes():
        prompt_config = replace(PROMPT, images=_learned_of_each_class(data, PROMPT.images))
        with costs("visual prompt"):
            prompt = recover_by_prompt(model, splits, prompt_config, seed=seed, device=device)
    images = data.forget_images(CONVERSION_IMAGES)
    with costs("retained tuning"):
        tuned = tune_on_retained(model, images, data.retain, seed=seed, device=device)
    with costs("perturbed images"):
        perturbed = recognise_perturbed(model, data.forget_images(PERTURBED_IMAGES), seed=seed, device=device)
    with costs("survival"):
        tried = conversions_of(name)
        converted = hits_after_conversion(model, images, conversions=tried, device=device) if tried else None
    return replace(
        measured,
        relearning=relearned,
        prompt=prompt,
        retained_tuning=tuned,
        perturbed=perturbed,
        conversions=converted,
    )


def conversions_of(name: str) -> tuple[str, ...]:
    """Conversions that a model goes through; only a model under audit is exported to ONNX, which takes longest.

    Args:
        name: Of the model.

    >>> conversions_of("original"), conversions_of("never saw"), conversions_of("retrained 1")
    (('int8', 'bf16', 'fp16'), (), ())
    """
    if name in (NEVER_SAW, HEAD_ONLY) or (is_reference(name) and name != reference_name(0)):
        return ()
    under_audit = name != ORIGINAL and not is_reference(name)
    return tuple(each for each in CONVERSIONS if under_audit or each != "onnx")


def measure_predictions(model: Classifier, data: AuditData, costs: Stopwatch) -> ModelMeasurements:
    """The predictions of one model, and the membership attack that takes nothing else.

    Args:
        model: The model.
        data: The images.
        costs: Counts the seconds.
    """
    splits, device = data.splits, data.device
    with costs("answers"):
        forget, retain, test = (predict(model, images, device) for images in (splits.forget, data.retain, data.test))
        forget_test = None if splits.forget_test is None else predict(model, splits.forget_test, device)
    with costs("membership"):
        calls = membership_calls(forget, retain, test, data.seed)
        auc = membership_auc(calls.members, calls.non_members, data.seed)
    return ModelMeasurements(forget, retain, test, forget_test, calls.forget, auc)


def with_probes(
    measured: ModelMeasurements,
    model: Classifier,
    data: AuditData,
    original: Classifier | None,
    style: StyleLayer | None,
    costs: Stopwatch,
) -> ModelMeasurements:
    """The same with what is read off the model's features and head.

    Args:
        measured: What was measured on the model.
        model: The model; it is not changed.
        data: The images.
        original: Whose head is transplanted; None where it was not given.
        style: Where to read the forgotten style; None for other requests.
        costs: Counts the seconds.
    """
    device = str(data.device)
    recovery = style_hits = None
    if data.enough and data.splits.forgets_classes():
        with costs("depth"):
            few_shot = replace(FEW_SHOT, seed=data.seed)
            recovery = recover_classes(
                model, data.attack_splits, original=original, layers=(), few_shot=few_shot, device=device
            )
    if data.enough and style is not None:
        with costs("style"):
            few_shot = replace(FEW_SHOT_STYLES, seed=data.seed)
            style_hits = probe_style(model, data.attack_splits, style, few_shot=few_shot, device=device)
    return replace(measured, recovery=recovery, style=style_hits)


def _learned_of_each_class(data: AuditData, images: int) -> int:
    """Forgotten images of each class that an attack learns from: at most half of them."""
    forget = data.splits.forget
    half_of_each_class = len(forget) // (2 * len(set(forget.targets.tolist())))
    return max(1, min(images, half_of_each_class))
