"""What a model says about the sets of a request, and the figures that follow from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from famr.data import Images
from famr.data.loaders import Batches, evaluation_batches
from famr.data.splits import Splits
from famr.data.transforms import Preprocessing
from famr.engine.devices import Precision
from famr.engine.inference import on_device, predict_batches
from famr.errors import DataError, NumericsError
from famr.metrics.forgetting import correct, cross_entropy, entropy, kl_divergence
from famr.metrics.membership import mia_efficacy
from famr.metrics.predictions import Predictions
from famr.metrics.retraining import average_gap, js_divergence
from famr.models import Classifier

SHOWN_TO_METHODS = 5
"""One test image in so many is shown to the methods, which may need held-out images; the others are scored."""
RETAINED_SCORED = 10_000
MIA_IMAGES = 2000
"""Members and non-members that the membership attack learns from, at most so many of each."""
TUNING_SCORED = MIA_IMAGES
"""Retained and held-out images that a trial of a method is scored on, at most so many of each."""
GAPS = ("forget_accuracy", "retained_accuracy", "retain_accuracy", "mia_efficacy")
"""Avg. Gap is the mean over these: forget set, retained training images, held-out images, membership attack."""


def apart(splits: Splits) -> tuple[Splits, Splits]:
    """What the methods may look at, and what is scored: no test image is in both."""
    if splits.test is None or not splits.test.labelled or len(splits.test) < SHOWN_TO_METHODS:
        raise DataError(
            "The bench needs held-out images with labels.", where=splits.request.describe(), fix="Give test images."
        )
    shown = torch.arange(len(splits.test)) % SHOWN_TO_METHODS == 0
    return (
        replace(splits, test=splits.test.where(shown), forget_test=None),
        replace(splits, test=splits.test.where(~shown)),
    )


class Marks(NamedTuple):
    """What a model says about a set, one value an image."""

    probability: Tensor  # of the true class
    correct: Tensor

    @classmethod
    def of(cls, said: Predictions) -> Marks:
        """From all its answers."""
        probability = torch.softmax(said.logits, dim=-1).gather(-1, said.targets[:, None])[:, 0]
        return cls(probability, correct(said.logits, said.targets))


@dataclass(frozen=True, eq=False)
class Said:
    """Predictions on the forget set, and marks on the others; none for samples in `forget_test`."""

    forget: Predictions
    retain: Marks
    test: Marks
    forget_test: Marks | None


@dataclass(frozen=True, eq=False)
class Views:
    """Passes over what is scored, held on a GPU once and shared by all models."""

    forget: Batches
    retain: Batches
    test: Batches
    forget_test: Batches | None

    @classmethod
    def of(cls, scored: Splits, preprocessing: Preprocessing, device: torch.device, tuning: bool = False) -> Views:
        """The same images for every model: of very many retained ones a draw, for tuning of held-out ones too."""

        def passes(images: Images, most: int | None = None) -> Batches:
            order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
            drawn = images if most is None else images.take(order[:most].sort().values)
            return evaluation_batches(drawn, preprocessing, device)

        assert scored.retain is not None
        assert scored.test is not None
        return cls(
            passes(scored.forget),
            passes(scored.retain, TUNING_SCORED if tuning else RETAINED_SCORED),
            passes(scored.test, TUNING_SCORED if tuning else None),
            None if scored.forget_test is None else passes(scored.forget_test),
        )


def look(model: Classifier, views: Views, device: torch.device, precision: Precision) -> Said:
    """Ask a model about everything that is scored."""
    with on_device(model.module, device):

        def asked(batches: Batches) -> Predictions:
            said = predict_batches(model, batches(None), device, precision)
            if not bool(torch.isfinite(said.logits).all()):
                raise NumericsError(
                    "The model's answers are not finite numbers.", where=model.spec, fix="Lower the learning rate."
                )
            return said

        held_out = None if views.forget_test is None else Marks.of(asked(views.forget_test))
        return Said(asked(views.forget), Marks.of(asked(views.retain)), Marks.of(asked(views.test)), held_out)


def measures(said: Said, original: Tensor) -> dict[str, float | None]:
    """The paper's five, and what Avg. Gap needs besides; `original` are the original's logits on the forget set."""
    logits, targets = said.forget.logits, said.forget.targets
    forgotten = Marks.of(said.forget).probability
    members, others = _some(said.retain.probability), _some(said.test.probability)
    return {
        "retain_accuracy": float(said.test.correct.mean()),
        "forget_accuracy": float(correct(logits, targets).mean()),
        "forget_test_accuracy": None if said.forget_test is None else float(said.forget_test.correct.mean()),
        "forget_cross_entropy": float(cross_entropy(logits, targets).mean()),
        "forget_entropy": float(entropy(logits).mean()),
        "forget_kl": float(kl_divergence(original, logits).mean()),
        "retained_accuracy": float(said.retain.correct.mean()),
        "mia_efficacy": mia_efficacy(members, others, forgotten),
    }


def _some(values: Tensor) -> Tensor:
    order = torch.randperm(len(values), generator=torch.Generator().manual_seed(0))
    return values[order[:MIA_IMAGES]]


def distance(
    said: Said,
    found: Mapping[str, float | None],
    retrained: Said | None,
    truth: Mapping[str, float | None] | None,
) -> dict[str, float | None]:
    """How far a model is from the retrained one: Avg. Gap of the measures, and JS of the answers on the forget set.

    Without a retrained model nobody knows.
    """
    if retrained is None or truth is None:
        return {"average_gap": None, "js_to_retrained": None}
    both = [{name: float(each[name] or 0.0) for name in GAPS} for each in (found, truth)]
    js = js_divergence(said.forget.logits, retrained.forget.logits).mean()
    return {"average_gap": average_gap(*both), "js_to_retrained": float(js)}
