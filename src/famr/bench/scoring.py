"""Predictions of a model on the sets of a request, and the figures that follow from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from famr.data import Images
from famr.data.calibration import calibration_mask
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

CALIBRATION_STRIDE = 4
"""One test image in four is for the methods, some of which need held-out images; the other ones are scored."""
RETAINED_SCORED = 10_000
MIA_IMAGES = 2000
"""Members and non-members that the membership attack is fitted on, at most so many of each."""
GAP_METRICS = ("forget_accuracy", "retained_accuracy", "retain_accuracy", "mia_efficacy")
"""Avg. Gap is the mean over these: forget set, retained training images, held-out images, membership attack."""


def calibration_and_scored(splits: Splits) -> tuple[Splits, Splits]:
    """Divide the test images into those that methods may see and those that are scored.

    Args:
        splits: The sets of a request.

    Returns:
        The splits for the methods, without `forget_test`, and the splits for scoring.

    Raises:
        DataError: There are no labelled test images, or too few.
    """
    if splits.test is None or not splits.test.labelled or len(splits.test) < CALIBRATION_STRIDE:
        raise DataError(
            "The bench needs held-out images with labels.", where=splits.request.describe(), fix="Give test images."
        )
    calibration = calibration_mask(splits.test)
    return (
        replace(splits, test=splits.test.where(calibration), forget_test=None),
        replace(splits, test=splits.test.where(~calibration)),
    )


class ImageScores(NamedTuple):
    """What is kept of the predictions on a set, one value an image.

    Attributes:
        probability: Of the true class.
        correct: 1 where it is predicted, else 0.
    """

    probability: Tensor
    correct: Tensor

    @classmethod
    def of(cls, predictions: Predictions) -> ImageScores:
        """Reduce predictions to these two values.

        Args:
            predictions: Logits and labels.
        """
        probability = torch.softmax(predictions.logits, dim=-1).gather(-1, predictions.targets[:, None])[:, 0]
        return cls(probability, correct(predictions.logits, predictions.targets))


@dataclass(frozen=True, eq=False)
class BenchPredictions:
    """Predictions of one model on everything that is scored.

    Attributes:
        forget: On the forget set, with all logits.
        retain: On retained training images.
        test: On held-out images that are not forgotten.
        forget_test: On held-out images of forgotten classes; None for samples.
    """

    forget: Predictions
    retain: ImageScores
    test: ImageScores
    forget_test: ImageScores | None


@dataclass(frozen=True, eq=False)
class ScoredBatches:
    """Batches of everything that is scored, prepared once and shared by all models.

    Attributes:
        forget: The forget set.
        retain: Retained training images.
        test: Held-out images that are not forgotten.
        forget_test: Held-out images of forgotten classes; None for samples.
    """

    forget: Batches
    retain: Batches
    test: Batches
    forget_test: Batches | None

    @classmethod
    def of(cls, scored: Splits, preprocessing: Preprocessing, device: torch.device) -> ScoredBatches:
        """The same images for every model; a fixed draw where there are very many.

        Args:
            scored: The sets that are scored.
            preprocessing: Of the models.
            device: Where the models compute.
        """

        def batches(images: Images, most: int | None = None) -> Batches:
            order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
            drawn = images if most is None else images.take(order[:most].sort().values)
            return evaluation_batches(drawn, preprocessing, device)

        assert scored.retain is not None
        assert scored.test is not None
        return cls(
            batches(scored.forget),
            batches(scored.retain, RETAINED_SCORED),
            batches(scored.test),
            None if scored.forget_test is None else batches(scored.forget_test),
        )


def predict_scored(
    model: Classifier, batches: ScoredBatches, device: torch.device, precision: Precision
) -> BenchPredictions:
    """Run a model on everything that is scored.

    Args:
        model: The model; it is moved to the device and back.
        batches: The images.
        device: Where to compute.
        precision: Of the forward passes.

    Raises:
        NumericsError: A logit is not finite.
    """

    def predict(set_batches: Batches) -> Predictions:
        predictions = predict_batches(model, set_batches(None), device, precision)
        if not bool(torch.isfinite(predictions.logits).all()):
            raise NumericsError(
                "The model's predictions are not finite numbers.", where=model.spec, fix="Lower the learning rate."
            )
        return predictions

    with on_device(model.module, device):
        forget_test = None if batches.forget_test is None else ImageScores.of(predict(batches.forget_test))
        return BenchPredictions(
            predict(batches.forget),
            ImageScores.of(predict(batches.retain)),
            ImageScores.of(predict(batches.test)),
            forget_test,
        )


def bench_metrics(predictions: BenchPredictions, original_logits: Tensor) -> dict[str, float | None]:
    """The paper's five metrics, and what Avg. Gap needs besides.

    Args:
        predictions: Of the model.
        original_logits: The original's logits on the forget set (images, classes).
    """
    logits, targets = predictions.forget.logits, predictions.forget.targets
    forgotten = ImageScores.of(predictions.forget).probability
    members, non_members = _attack_sample(predictions.retain.probability), _attack_sample(predictions.test.probability)
    forget_test = predictions.forget_test
    return {
        "retain_accuracy": float(predictions.test.correct.mean()),
        "forget_accuracy": float(correct(logits, targets).mean()),
        "forget_test_accuracy": None if forget_test is None else float(forget_test.correct.mean()),
        "forget_cross_entropy": float(cross_entropy(logits, targets).mean()),
        "forget_entropy": float(entropy(logits).mean()),
        "forget_kl": float(kl_divergence(original_logits, logits).mean()),
        "retained_accuracy": float(predictions.retain.correct.mean()),
        "mia_efficacy": mia_efficacy(members, non_members, forgotten),
    }


def _attack_sample(values: Tensor) -> Tensor:
    order = torch.randperm(len(values), generator=torch.Generator().manual_seed(0))
    return values[order[:MIA_IMAGES]]


def retraining_gap(
    predictions: BenchPredictions,
    metrics: Mapping[str, float | None],
    retrained: BenchPredictions | None,
    retrained_metrics: Mapping[str, float | None] | None,
) -> dict[str, float | None]:
    """How far a model is from the retrained one: Avg. Gap of the metrics, JS of the predictions on the forget set.

    Args:
        predictions: Of the model.
        metrics: Of the model.
        retrained: Predictions of the retrained model; None: the gap is not available.
        retrained_metrics: Its metrics.
    """
    if retrained is None or retrained_metrics is None:
        return {"average_gap": None, "js_to_retrained": None}
    ours, theirs = ({name: float(of[name] or 0.0) for name in GAP_METRICS} for of in (metrics, retrained_metrics))
    js = js_divergence(predictions.forget.logits, retrained.forget.logits).mean()
    return {"average_gap": average_gap(ours, theirs), "js_to_retrained": float(js)}
