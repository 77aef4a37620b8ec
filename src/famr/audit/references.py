"""Reference models: is each shown to be a model of its own that never saw the forget set?"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from famr.audit.measurements import ModelMeasurements
from famr.audit.names import ORIGINAL, UNLEARNED
from famr.data.request import Request
from famr.data.splits import Splits
from famr.errors import RequestError
from famr.metrics.forgetting import correct
from famr.metrics.predictions import Predictions
from famr.metrics.retraining import js_divergence
from famr.models import Classifier
from famr.runs.training_record import TrainingRecord, notes_on_reference, reasons_not_a_reference
from famr.training import Trained

OWN_MODELS = "Give models that were trained without the forget set, each from a seed of its own."
COPY = 0.2
"""A model whose predictions are nearer to another one's than this share of what two trainings differ by is a copy."""
KNOWS_THE_CLASS = 0.05
"""Accuracy on a forgotten class that no model reaches which was trained without it."""
SAW_SHARE = 0.5
"""The share of the original's lead on the forget set over unseen images from which a model counts as having seen it."""
SMALL_LEAD = 0.02
"""A lead of the original below which nothing can be read off it."""


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
        unseen_accuracy: On unseen images of the same kind: held-out ones of the class, else all held-out ones.
    """

    sha256: str
    record: Mapping[str, Any] | None
    not_shown: tuple[str, ...]
    forget_accuracy: float
    unseen_accuracy: float

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {**asdict(self), "not_shown": list(self.not_shown)}


def require_own_models(models: Mapping[str, Classifier], references: Sequence[str]) -> dict[str, str]:
    """Refuse reference models whose weights are those of another model of the audit.

    Args:
        models: All models of the audit by name.
        references: Names of those that should have been trained on their own.

    Returns:
        SHA-256 of the weights by name.

    Raises:
        RequestError: For a model that is given twice.
    """
    digests = {name: model.digest() for name, model in models.items()}
    for name in references:
        if twin := next((other for other in models if other != name and digests[other] == digests[name]), None):
            raise RequestError(
                f"The {name} model is the {twin} one: the same weights.", where=models[name].spec, fix=OWN_MODELS
            )
    return digests


def require_own_predictions(measured: Mapping[str, ModelMeasurements], references: Sequence[str]) -> None:
    """Refuse reference models that predict what another model of the audit predicts.

    A copy with a little noise, or with its units in another order, has a digest of its own and the same predictions.
    Two trainings from different seeds differ on held-out images, and the median of their JS divergences is the scale.

    Args:
        measured: Predictions of all models by name.
        references: Names of those that should have been trained on their own.

    Raises:
        RequestError: For a copy.
    """

    def distance(first: str, second: str) -> float:
        return float(js_divergence(measured[first].test.logits, measured[second].test.logits).mean())

    pairs = {pair: distance(*pair) for pair in combinations(references, 2)}
    if not pairs:
        return
    usual = statistics.median(pairs.values())
    audited = [name for name in (UNLEARNED, ORIGINAL) if name in measured]
    pairs |= {(name, other): distance(name, other) for name in references for other in audited}
    for (name, other), value in pairs.items():
        if value < COPY * usual:
            raise RequestError(
                f"The {name} model is a copy of the {other} one: on held-out images they hardly differ.",
                where=f"JS {value:.2g}, where two trainings differ by {usual:.2g}",
                fix=OWN_MODELS,
            )


def reference_facts(
    reference: Reference,
    name: str,
    measured: ModelMeasurements,
    original: ModelMeasurements | None,
    splits: Splits,
    digests: Mapping[str, str],
) -> ReferenceFacts:
    """What shows that a model never saw the forget set.

    Args:
        reference: The model and its record.
        name: Of the model in the audit.
        measured: Its predictions.
        original: Those of the original, which did see it; None where it was not given.
        splits: The request's sets.
        digests: SHA-256 of the weights of all models, by name.

    Raises:
        RequestError: Its record or its predictions say that it saw the forget set.
    """
    record = reference.record
    saw = {other: digests[other] for other in (UNLEARNED, ORIGINAL) if other in digests}
    retain = () if splits.retain is None else splits.retain.ids
    reasons = reasons_not_a_reference(record, splits.request, retain, splits.forget.ids, digests[name], saw)
    if record is not None and reasons:
        raise RequestError(
            f"The {name} model is no reference for this request: {reasons[0]}.",
            where=reference.model.spec,
            fix=f"Train one without {splits.request.describe()}: `famr train` with the same request.",
        )
    forget, unseen = forget_and_unseen(measured, splits)
    if seen := _saw(forget, unseen, None if original is None else forget_and_unseen(original, splits), splits):
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
    return ReferenceFacts(digests[name], facts, tuple(reasons), forget, unseen)


def forget_and_unseen(measured: ModelMeasurements, splits: Splits) -> tuple[float, float]:
    """Accuracy on the forget set, and on unseen images of the same kind.

    Args:
        measured: Predictions of a model.
        splits: The request's sets.
    """
    unseen = measured.test
    if splits.forgets_classes() and measured.forget_test is not None:
        unseen = measured.forget_test
    return _accuracy(measured.forget), _accuracy(unseen)


def retained_accuracy(measured: ModelMeasurements) -> float:
    """Accuracy on held-out retained images.

    Args:
        measured: Predictions of a model.
    """
    return _accuracy(measured.test)


def _accuracy(predictions: Predictions) -> float:
    return float(correct(predictions.logits, predictions.targets).double().mean())


def _saw(forget: float, unseen: float, original: tuple[float, float] | None, splits: Splits) -> str | None:
    """How a model's accuracies give away that it saw the forget set; None where they do not."""
    if splits.forgets_classes():
        if forget > KNOWS_THE_CLASS and unseen > KNOWS_THE_CLASS / 2:
            return f"it puts {100 * forget:.1f} % of it into classes that it cannot know"
        return None
    if original is None or (lead := original[0] - original[1]) < SMALL_LEAD:
        return None
    if forget - unseen > SAW_SHARE * lead:
        return (
            f"it is right for {100 * forget:.1f} % of it and for {100 * unseen:.1f} % of unseen images, as "
            f"the original is for {100 * original[0]:.1f} and {100 * original[1]:.1f} %"
        )
    return None
