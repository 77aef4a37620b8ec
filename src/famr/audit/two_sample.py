"""Classifier two-sample test [Lopez-Paz & Oquab 2017]: can a model's predictions be told from a retrained one's?

A uniform prediction forgets, and reveals what was forgotten. The attacker sees predictions on forget images, from the
unlearned model or from a retrained one, and has to decide which. AUC 0.5 is guessing; the AUC between retrained models
of different seeds is the level that no method has to beat.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from famr.audit.roc import FEWEST, AttackScores, auc, roc_summary
from famr.errors import RequestError
from famr.losses.objective import at_least_float32
from famr.metrics.forgetting import entropy

NEIGHBOURS = 5
"""Retained classes nearest to the forgotten one whose probabilities are summed."""
FOLDS = 5
TREES = 40
MIN_LEAF = 5
"""Predictions in a leaf of a tree."""
DRAWS = 500
"""Bootstrap samples of the interval."""
FEATURES = ("entropy", "margin", "neighbour mass")


@dataclass(frozen=True)
class TwoSampleTest:
    """How well the attacker does.

    Attributes:
        auc: Over all images and models, each scored by a classifier that was not trained on the image.
        low: Lower end of the 95 % interval over resampled images.
        high: Upper end.
        by_feature: AUC of each of `FEATURES` alone, in the direction in which it is above ½.
    """

    auc: float
    low: float
    high: float
    by_feature: dict[str, float]


def prediction_features(logits: Tensor, near: Tensor) -> Tensor:
    """Entropy, z₍₁₎ − z₍₂₎ (the log-odds of the first class against the second), and Σ_{k ∈ near} p_k.

    Args:
        logits: (images, classes).
        near: Indices of the classes nearest to the forgotten one.

    Returns:
        (images, 3), in the order of `FEATURES`.
    """
    logits = at_least_float32(logits)
    first, second = logits.topk(2, dim=-1).values.unbind(dim=-1)
    mass = torch.softmax(logits, dim=-1)[:, near].sum(dim=-1)
    return torch.stack([entropy(logits), first - second, mass], dim=-1)


def two_sample_test(unlearned: Tensor, retrained: Sequence[Tensor], near: Tensor, seed: int = 0) -> TwoSampleTest:
    """A random forest on the features of predictions, cross-validated over images.

    An image is in the training part for all models or for none, so that the forest cannot memorise single images.

    Args:
        unlearned: Logits on forget images, (images, classes).
        retrained: Logits of each retrained model on the same images.
        near: Indices of the classes nearest to the forgotten one.
        seed: Of the folds, the forest and the bootstrap.

    Raises:
        RequestError: With fewer than 20 images.
    """
    features = torch.stack([prediction_features(logits, near) for logits in (unlearned, *retrained)]).double().cpu()
    from_unlearned = torch.zeros(features.shape[:2], dtype=torch.bool)  # (models, images)
    from_unlearned[0] = True
    scores = torch.from_numpy(_cross_validated_scores(features.numpy(), from_unlearned.numpy(), seed))
    scored = AttackScores(scores, from_unlearned, ~from_unlearned)
    interval = roc_summary(scored, seed=seed, draws=DRAWS, resample_models=False).auc
    if interval is None:
        raise RequestError(
            f"The two-sample test needs at least {FEWEST} images, got {len(unlearned)}.", where="forget set"
        )
    alone = [auc(features[..., index].flatten(), from_unlearned.flatten()) for index in range(len(FEATURES))]
    by_feature = {name: max(value, 1 - value) for name, value in zip(FEATURES, alone, strict=True)}
    return TwoSampleTest(interval.value, interval.low, interval.high, by_feature)


def _cross_validated_scores(
    features: np.ndarray[Any, Any], labels: np.ndarray[Any, Any], seed: int
) -> np.ndarray[Any, Any]:
    """P(label) of each prediction, (models, images), by a forest trained on the images of the remaining folds."""
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.model_selection import GroupKFold

    models, images = labels.shape
    rows, truth = features.reshape(models * images, -1), labels.ravel().astype(int)
    rank = np.random.default_rng(seed).permutation(images).argsort()  # folds of a random order of the images
    scores = np.zeros(len(truth))
    for train, test in GroupKFold(n_splits=FOLDS).split(rows, truth, np.tile(rank, models)):
        forest = RandomForestClassifier(
            n_estimators=TREES, min_samples_leaf=MIN_LEAF, class_weight="balanced", random_state=seed
        ).fit(rows[train], truth[train])
        scores[test] = forest.predict_proba(rows[test])[:, 1]
    return scores.reshape(models, images)
