"""Reference models: is each shown to have never seen the forget set, and to have been trained like the others?"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from famr.audit.measurements import ModelMeasurements
from famr.data.request import Request
from famr.data.splits import Splits
from famr.errors import RequestError
from famr.metrics.forgetting import correct
from famr.metrics.predictions import Predictions
from famr.models import Classifier
from famr.runs.training_record import TrainingRecord, notes_on_reference, reasons_not_a_reference
from famr.training import Trained

KNOWS_THE_CLASS = 0.05
"""Accuracy on a forgotten class that no model reaches which was trained without it."""
SAW_SHARE = 0.5
"""The share of the original's lead on the forget set over unseen images from which a model counts as having seen it."""
SMALL_LEAD = 0.02
"""A lead of the original below which nothing can be read off it."""
DEVIATIONS = 3.0
"""Standard errors that a lead has to exceed: with few images, models that never saw them lead by chance."""
COMPUTING = ("precision", "compile")
"""Settings of a training that say how it was computed."""


@dataclass(frozen=True, eq=False)
class Reference:
    """A model that was trained without the forget set, and the record that shows it.

    Attributes:
        model: The model.
        record: Of its training; None: nothing shows what it was trained on, and no audit against it passes.
    """

    model: Classifier
    record: TrainingRecord | None = None

    @classmethod
    def of(cls, model: Classifier | Reference) -> Reference:
        """A reference as it is; a bare model with the record in the folder that it was loaded from, if there is one.

        Args:
            model: Either.
        """
        return model if isinstance(model, Reference) else cls(model, TrainingRecord.read(Path(model.spec)))

    @classmethod
    def trained_now(cls, trained: Trained, without: Request) -> Reference:
        """The outcome of `famr.fit`, before or without saving it.

        Args:
            trained: On the retained images.
            without: The request whose images were left out.
        """
        record = TrainingRecord(
            without,
            trained.model.digest(),
            trained.seed,
            trained.images_count,
            trained.images_sha256,
            asdict(trained.training),
            start_sha256=trained.start_sha256,
        )
        return cls(trained.model, record)


@dataclass(frozen=True)
class ReferenceFacts:
    """What shows that a model never saw the forget set; as in audit.json.

    Attributes:
        sha256: Digest of its weights.
        record: Its training: what it was trained without, seed, number of images; None without a record.
        not_shown: Why it is not shown to be a reference; empty where it is.
        forget_accuracy: On the forget set.
        unseen_accuracy: On unseen images of the same kind: held-out ones of what was forgotten; for samples all
            held-out ones, in the forget set's mix of classes.
    """

    sha256: str
    record: Mapping[str, Any] | None
    not_shown: tuple[str, ...]
    forget_accuracy: float
    unseen_accuracy: float

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {**asdict(self), "not_shown": list(self.not_shown)}


def reference_facts(
    reference: Reference,
    name: str,
    measured: ModelMeasurements,
    original: ModelMeasurements | None,
    splits: Splits,
    digest: str,
    saw: Mapping[str, str],
) -> ReferenceFacts:
    """What shows that a model never saw the forget set.

    Args:
        reference: The model and its record.
        name: Of the model in the audit.
        measured: Its predictions.
        original: Those of the original, which did see it; None where it was not given.
        splits: The request's sets.
        digest: SHA-256 of its weights.
        saw: SHA-256 of the weights of the original and of the models under audit, by name.

    Raises:
        RequestError: Its record or its predictions say that it saw the forget set.
    """
    record = reference.record
    retain = () if splits.retain is None else splits.retain.ids
    reasons = reasons_not_a_reference(record, splits.request, retain, splits.forget.ids, digest, saw)
    if record is not None and reasons:
        raise RequestError(
            f"The {name} model is no reference for this request: {reasons[0]}.",
            where=reference.model.spec,
            fix=f"Train one without {splits.request.describe()}: `famr train` with the same request.",
        )
    forget, unseen = forget_and_unseen(measured)
    of_original = None if original is None else forget_and_unseen(original)
    if seen := why_seen(forget, unseen, of_original, splits.forgets_classes()):
        raise RequestError(
            f"The {name} model saw the forget set: {seen}.",
            where=reference.model.spec,
            fix="Give models that were trained without the forget set.",
        )
    facts = None
    if record is not None:
        without = None if record.without is None else record.without.to_json()
        notes = notes_on_reference(record)
        facts = {"without": without, "seed": record.seed, "images": record.images_count, "notes": notes}
    return ReferenceFacts(digest, facts, tuple(reasons), _mean(forget), _mean(unseen))


def forget_and_unseen(measured: ModelMeasurements) -> tuple[Tensor, Tensor]:
    """Hits on the forget set, and on unseen images of the same kind.

    For samples these are all held-out images, in the forget set's mix of classes: an easy class that is forgotten more
    than others makes no model look as if it had seen the images.

    Args:
        measured: Predictions of a model.

    Returns:
        (forget images,) and (unseen images,); values whose means are accuracies.
    """
    forget = _hits(measured.forget)
    if measured.forget_test is not None:
        return forget, _hits(measured.forget_test)
    hits, classes = _hits(measured.test), measured.test.targets
    of_class = {
        label: hits[classes == label] for label in set(classes.tolist()) & set(measured.forget.targets.tolist())
    }
    if not of_class:
        return forget, hits
    mixed = [label for label in measured.forget.targets.tolist() if label in of_class]
    shares = {label: mixed.count(label) / len(mixed) for label in of_class}
    total = sum(len(each) for each in of_class.values())
    return forget, torch.cat([each * shares[label] * total / len(each) for label, each in of_class.items()])


def retained_accuracy(measured: ModelMeasurements) -> float:
    """Accuracy on held-out retained images.

    Args:
        measured: Predictions of a model.
    """
    return _mean(_hits(measured.test))


def why_seen(forget: Tensor, unseen: Tensor, original: tuple[Tensor, Tensor] | None, classes: bool) -> str | None:
    """How a model's accuracies give away that it saw the forget set; None where they do not.

    For samples its lead on the forget set has to be half of the original's, and `DEVIATIONS` standard errors.

    Args:
        forget: Its hits on the forget set, (images,).
        unseen: Its hits on unseen images of the same kind, (images',).
        original: The same of the original; None where it was not given.
        classes: Whether whole classes were forgotten.

    >>> always, often = torch.ones(50), torch.tensor([1.0] * 80 + [0.0] * 20)
    >>> why_seen(always, often, (always, often), classes=False)
    'it is right for 100.0 % of it and for 80.0 % of unseen images, as the original is for 100.0 and 80.0 %'
    >>> why_seen(often, often, (always, often), classes=False)
    """
    right, right_unseen = _mean(forget), _mean(unseen)
    if classes:
        if right > KNOWS_THE_CLASS and right_unseen > KNOWS_THE_CLASS / 2:
            return f"it puts {100 * right:.1f} % of it into classes that it cannot know"
        return None
    if original is None or (lead := _mean(original[0]) - _mean(original[1])) < SMALL_LEAD:
        return None
    error = math.sqrt(sum(float(hits.var(unbiased=False)) / len(hits) for hits in (forget, unseen)))
    if right - right_unseen > max(SAW_SHARE * lead, DEVIATIONS * error):
        first, second = (100 * _mean(each) for each in original)
        return (
            f"it is right for {100 * right:.1f} % of it and for {100 * right_unseen:.1f} % of unseen images, as "
            f"the original is for {first:.1f} and {second:.1f} %"
        )
    return None


def differing_settings(record: TrainingRecord, other: TrainingRecord, besides: Collection[str] = ()) -> tuple[str, ...]:
    """The settings in which two trainings differ; how numbers were computed does not count.

    Args:
        record: Of one training.
        other: Of another one.
        besides: Settings that may differ as well.
    """
    first, second = (json.loads(json.dumps(dict(each.training))) for each in (record, other))
    names = sorted({*first, *second} - {*COMPUTING, *besides})
    return tuple(name for name in names if first.get(name) != second.get(name))


def trained_unlike(references: Mapping[str, Reference], original: Classifier | None) -> str | None:
    """That references were not trained alike, or not as the original; None where they were, or nothing is known.

    Trainings that differ spread more, and a wider spread allows more: references of many lengths of training would
    let any model pass.

    Args:
        references: By name.
        original: The original; it is compared where its folder has the record of its training.
    """
    records = {name: each.record for name, each in references.items() if each.record is not None}
    before = None if original is None else TrainingRecord.read(Path(original.spec))
    if before is not None and original is not None and before.weights_sha256 == original.digest():
        records = {"original": before, **records}
    first = next(iter(records), "")
    for name, record in records.items():
        if differing := differing_settings(records[first], record):
            return f"The {name} model was trained unlike the {first} one: {', '.join(differing)} differ."
    return None


def why_not_used(never_saw: Reference, facts: ReferenceFacts, references: Mapping[str, Reference]) -> str | None:
    """Why a never-saw model is no control; None where it is one.

    A gate that it fails does not count, so its user must not be free in how it is trained: one with label smoothing,
    say, would take away every gate on how certain predictions are.

    Args:
        never_saw: The model and its record.
        facts: What shows that it did not see the forget set.
        references: The retrained models, by name.
    """
    record = never_saw.record
    if record is None or facts.not_shown:
        return facts.not_shown[0]
    for name, reference in references.items():
        if reference.record is None:
            continue
        if differing := differing_settings(record, reference.record, besides=("epochs",)):
            return f"it was trained unlike the {name} model: {', '.join(differing)} differ"
        if not record.training.get("epochs", 0) < reference.record.training.get("epochs", 0):
            return f"it was not trained for fewer epochs than the {name} model"
    return None


def _hits(predictions: Predictions) -> Tensor:
    return correct(predictions.logits, predictions.targets).double()


def _mean(values: Tensor) -> float:
    return float(values.mean())
