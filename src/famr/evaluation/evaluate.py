"""The paper's five metrics of a model on the sets of a request, and its gaps to a retrained model."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from famr.data.splits import Splits
from famr.engine.devices import Precision
from famr.engine.distributed import ALONE, Ranks
from famr.engine.inference import accuracy_on_images, predict_splits
from famr.errors import CheckpointError
from famr.metrics.predictions import SplitPredictions
from famr.metrics.retraining import gap, js_divergence
from famr.metrics.scores import ModelScores, Scores, score
from famr.metrics.tables import COLUMNS
from famr.models import Classifier
from famr.models.labels import require_same_labels

if TYPE_CHECKING:
    from famr.unlearn.result import Unlearned


def evaluate(
    result: Unlearned,
    splits: Splits,
    retrained: Classifier | None = None,
    *,
    device: str | None = None,
    precision: Precision = "fp32",
) -> Scores:
    """Evaluate an unlearned model beside its original and, if there is one, a retrained model.

    Args:
        result: Of `famr.forget`.
        splits: The sets of the request.
        retrained: Trained without the forget set; None where there is none, and then there are no gaps.
        device: Where the models compute; None for the best available.
        precision: Of the forward passes.

    Raises:
        CheckpointError: The retrained model has other classes.
        DataError: The images have other classes, or one cannot be read.
    """
    return compare(result.original, result.model, retrained, splits, device=device, precision=precision)


def compare(
    original: Classifier | None,
    unlearned: Classifier,
    retrained: Classifier | None,
    splits: Splits,
    *,
    device: str | None = None,
    precision: Precision = "fp32",
    ranks: Ranks = ALONE,
) -> Scores:
    """Evaluate up to three models on the same images.

    Args:
        original: The model before unlearning; None where it is not available.
        unlearned: The model to evaluate.
        retrained: Trained without the forget set; None where there is none, and then there are no gaps.
        splits: The sets of the request.
        device: Where the models compute; None for the best available.
        precision: Of the forward passes.
        ranks: The processes that share the work.

    Raises:
        CheckpointError: The models have different classes.
        DataError: The images have other classes, or one cannot be read.
    """
    for name, model in (("original", original), ("retrained", retrained)):
        if model is not None and model.labels != unlearned.labels:
            raise CheckpointError(
                f"The {name} model names other classes than the unlearned one.",
                where=f"{model.spec}: {len(model.labels or ())} classes",
                fix="Compare models that were trained on the same classes.",
            )
    require_same_labels(unlearned, splits)
    chosen = ranks.device(device or "auto")
    scores = compare_predictions(
        None if original is None else predict_splits(splits, original, chosen, precision, ranks),
        predict_splits(splits, unlearned, chosen, precision, ranks),
        None if retrained is None else predict_splits(splits, retrained, chosen, precision, ranks),
        splits,
    )
    earlier = {
        run.request.describe(): None if images is None else accuracy_on_images(unlearned, images, chosen, ranks)
        for run, images in zip(splits.earlier, splits.earlier_images, strict=True)
    }
    return replace(scores, earlier=earlier)


def compare_predictions(
    original: SplitPredictions | None, unlearned: SplitPredictions, retrained: SplitPredictions | None, splits: Splits
) -> Scores:
    """The scores of up to three models, from their predictions.

    Args:
        original: Predictions of the original; None where they are not available.
        unlearned: Those of the unlearned model.
        retrained: Those of a retrained model; None where there is none.
        splits: The sets that the predictions are on.

    Returns:
        The five metrics of each model, |unlearned − retrained| of each metric, and the JS divergence on the forget set.
    """
    predictions = {"original": original, "unlearned": unlearned, "retrained": retrained}
    original_forget = None if original is None else original.forget
    scores = {
        name: score(sets.forget, original_forget, sets.test, sets.forget_test)
        for name, sets in predictions.items()
        if sets is not None
    }
    gaps = None
    if retrained is not None:
        gaps = {name: gap(*(getattr(scores[model], name) for model in ("unlearned", "retrained"))) for name in COLUMNS}
        js = js_divergence(unlearned.forget.logits, retrained.forget.logits).mean()
        gaps["forget_js_divergence"] = float(js)
    return Scores(
        original=scores.get("original"),
        unlearned=scores["unlearned"],
        retrained=scores.get("retrained"),
        gap=gaps,
        not_available=_not_available(splits, scores),
    )


def _not_available(splits: Splits, scores: dict[str, ModelScores]) -> dict[str, str]:
    """Why a metric is missing, by its name."""
    reasons = {}
    if splits.test is None or not splits.test.labelled:
        reasons["retain_accuracy"] = "no labelled held-out images of retained classes were given"
    if splits.forget_test is None:
        reasons["forget_test_accuracy"] = (
            "forgotten samples have no held-out counterpart"
            if splits.request.kind == "samples"
            else "no held-out images of what was forgotten were given"
        )
    if not splits.forget.labelled:
        reasons["forget_accuracy"] = reasons["forget_cross_entropy"] = "the forget images have no labels"
    if "original" not in scores:
        reasons["original"] = reasons["forget_kl"] = "the original checkpoint was not given"
    if "retrained" not in scores:
        reasons["retrained"] = reasons["gap"] = "no retrained checkpoint was given"
    return reasons
