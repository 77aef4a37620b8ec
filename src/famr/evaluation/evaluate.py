"""The paper's five metrics of a model on the sets of a request, and the gaps to a retrained model."""

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
    """Measure an unlearned model beside its original and, if there is one, beside a retrained model."""
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
    """The five metrics of up to three models on the same images."""
    for name, model in (("original", original), ("retrained", retrained)):
        if model is not None and model.labels != unlearned.labels:
            raise CheckpointError(
                f"The {name} model names other classes than the unlearned one.",
                where=f"{model.spec}: {len(model.labels or ())} classes",
                fix="Compare models that were trained on the same classes.",
            )
    require_same_labels(unlearned, splits)
    place = ranks.place(device or "auto")
    scores = compare_predictions(
        None if original is None else predict_splits(splits, original, place, precision, ranks),
        predict_splits(splits, unlearned, place, precision, ranks),
        None if retrained is None else predict_splits(splits, retrained, place, precision, ranks),
        splits,
    )
    earlier = {
        run.request.describe(): None if images is None else accuracy_on_images(unlearned, images, place, ranks)
        for run, images in zip(splits.earlier, splits.earlier_images, strict=True)
    }
    return replace(scores, earlier=earlier)


def compare_predictions(
    original: SplitPredictions | None, unlearned: SplitPredictions, retrained: SplitPredictions | None, splits: Splits
) -> Scores:
    """The five metrics from what up to three models said; |unlearned − retrained| of each, and the JS between them."""
    said = {"original": original, "unlearned": unlearned, "retrained": retrained}
    reference = None if original is None else original.forget
    scores = {
        name: score(found.forget, reference, found.test, found.forget_test)
        for name, found in said.items()
        if found is not None
    }
    gaps = None
    if retrained is not None:
        pairs = {name: gap(*(getattr(scores[m], name) for m in ("unlearned", "retrained"))) for name in COLUMNS}
        js = js_divergence(unlearned.forget.logits, retrained.forget.logits).mean()
        gaps = {**pairs, "forget_js_divergence": float(js)}
    return Scores(scores.get("original"), scores["unlearned"], scores.get("retrained"), gaps, _reasons(splits, scores))


def _reasons(splits: Splits, scores: dict[str, ModelScores]) -> dict[str, str]:
    """One sentence for each figure that could not be measured."""
    reasons = {}
    if splits.test is None or not splits.test.labelled:
        reasons["retain_accuracy"] = "no labelled held-out images of retained classes were given"
    if splits.forget_test is None:
        asked_for_samples = splits.request.kind == "samples"
        reasons["forget_test_accuracy"] = (
            "forgotten samples have no held-out counterpart"
            if asked_for_samples
            else "no held-out images of what was forgotten were given"
        )
    if not splits.forget.labelled:
        reasons["forget_accuracy"] = reasons["forget_cross_entropy"] = "the forget images have no labels"
    if "original" not in scores:
        reasons["original"] = reasons["forget_kl"] = "the original checkpoint was not given"
    if "retrained" not in scores:
        reasons["retrained"] = reasons["gap"] = "no retrained checkpoint was given"
    return reasons
