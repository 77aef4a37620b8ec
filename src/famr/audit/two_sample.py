"""Classifier two-sample test [Lopez-Paz & Oquab 2017]: can a model's predictions be told from a retrained one's?

A uniform prediction forgets, and reveals what was forgotten. The attacker sees whole predictions on forget images, from
the unlearned model or from a retrained one, and has to decide which: how the probability is spread, down to the least
likely class, and how much of it is within every distance from the true one. AUC 0.5 is guessing; the AUC between
retrained models of different seeds is the level that no method has to beat.

The attacker does not see which class has which probability: every training leaves its own small preference for each
class, and an attacker who learns these tells any model from any other, retrained ones included, and so nothing about
unlearning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from famr.audit.roc import FEWEST, AttackScores, auc, roc_summary
from famr.engine.devices import single_thread
from famr.errors import RequestError
from famr.losses.objective import at_least_float32
from famr.metrics.forgetting import entropy

NEIGHBOURS = 5
"""Classes nearest to that of an image whose probabilities are summed."""
DISTANCES = (1, 2, 5, 10, 20, 50, 100, 200, 500)
"""Numbers of nearest classes whose probabilities are summed, as far as there are so many."""
FOLDS = 5
INVERSE_REGULARISATION = 0.1
"""C of the logistic regression."""
LARGEST_SQUARED = 4.0
"""Standard deviations beyond which a feature's square does not grow: single images must not decide."""
LOWEST = -100.0
"""Smaller log-probabilities are raised to this one."""
DRAWS = 500
"""Bootstrap samples of the interval."""
FEATURES = ("entropy", "margin", "neighbour mass")
"""The features with a name; others come after them."""


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


def neighbour_order(logits: Tensor, targets: Tensor) -> Tensor:
    """For each image its own class, then the other classes from the nearest to the farthest.

    Near are the classes that are likely on average, without the true one, on all images of the same class.

    Args:
        logits: Of one model for all attacks, such as the original, on the forget images, (images, classes).
        targets: True classes, (images,).

    Returns:
        Class indices, (images, classes).

    >>> neighbour_order(torch.tensor([[9.0, 1.0, 3.0], [9.0, 0.0, 2.0]]), torch.tensor([0, 0]))
    tensor([[0, 2, 1],
            [0, 2, 1]])
    """
    others = torch.softmax(at_least_float32(logits).scatter(1, targets[:, None], -torch.inf), dim=-1)
    classes = logits.shape[-1]
    likely = torch.zeros(classes, classes, dtype=others.dtype).index_add(0, targets, others)  # sums order like means
    return likely.fill_diagonal_(torch.inf).argsort(dim=1, descending=True, stable=True)[targets]


def prediction_features(logits: Tensor, nearest: Tensor) -> Tensor:
    """What the attacker sees of predictions.

    These are the entropy, z₍₁₎ − z₍₂₎ (the log-odds of the first class against the second), Σ p over the neighbours of
    the true class; then log Σ p over more and more of them; then log p in the order of size.

    Args:
        logits: (images, classes).
        nearest: Classes of each image as in `neighbour_order`, (images, classes).

    Returns:
        (images, features).
    """
    logits = at_least_float32(logits)
    classes = logits.shape[-1]
    first, second = logits.topk(2, dim=-1).values.unbind(dim=-1)
    log_p = torch.log_softmax(logits, dim=-1)
    within = torch.logcumsumexp(log_p.gather(-1, nearest)[:, 1:], dim=-1).clamp(min=LOWEST)  # nearest ones first
    mass = within[:, min(NEIGHBOURS, classes - 1) - 1].exp()
    named = torch.stack([entropy(logits), first - second, mass], dim=-1)
    by_distance = within[:, [count - 1 for count in DISTANCES if count < classes]]
    return torch.cat([named, by_distance, log_p.clamp(min=LOWEST).sort(dim=-1, descending=True).values], dim=-1)


def two_sample_test(unlearned: Tensor, retrained: Sequence[Tensor], nearest: Tensor, seed: int = 0) -> TwoSampleTest:
    """A logistic regression on the features of predictions and their squares, cross-validated over images.

    The squares let it notice another spread as well as another mean; boosted trees and forests noticed no more on
    predictions on CIFAR-100. An image is in the training part for all models or for none, so that single images cannot
    be memorised.

    Args:
        unlearned: Logits on forget images, (images, classes).
        retrained: Logits of each retrained model on the same images.
        nearest: Classes of each image as in `neighbour_order`, (images, classes).
        seed: Of the folds and the bootstrap.

    Raises:
        RequestError: With fewer than 20 images.
    """
    if len(unlearned) < FEWEST:
        raise RequestError(
            f"The two-sample test needs at least {FEWEST} images, got {len(unlearned)}.", where="forget set"
        )
    features = torch.stack([prediction_features(logits, nearest) for logits in (unlearned, *retrained)]).double().cpu()
    from_unlearned = torch.zeros(features.shape[:2], dtype=torch.bool)  # (models, images)
    from_unlearned[0] = True
    scores = torch.from_numpy(_cross_validated_scores(features.numpy(), from_unlearned.numpy(), seed))
    scored = AttackScores(scores, from_unlearned, ~from_unlearned)
    interval = roc_summary(scored, seed=seed, draws=DRAWS, resample_models=False).auc
    assert interval is not None  # there are enough images
    alone = [auc(features[..., index].flatten(), from_unlearned.flatten()) for index in range(len(FEATURES))]
    by_feature = {name: max(value, 1 - value) for name, value in zip(FEATURES, alone, strict=True)}
    return TwoSampleTest(interval.value, interval.low, interval.high, by_feature)


def with_squares(standardised: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Standardised features, and their squares beside them.

    Args:
        standardised: (rows, features).

    >>> with_squares(np.array([[2.0, -9.0]]))
    array([[ 2., -9.,  4., 16.]])
    """
    bounded = np.clip(standardised, -LARGEST_SQUARED, LARGEST_SQUARED)
    return np.concatenate([standardised, bounded**2], axis=1)


def _cross_validated_scores(
    features: np.ndarray[Any, Any], labels: np.ndarray[Any, Any], seed: int
) -> np.ndarray[Any, Any]:
    """P(label) of each prediction, (models, images), by a classifier trained on the images of the remaining folds."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GroupKFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer, StandardScaler

    models, images = labels.shape
    rows, truth = features.reshape(models * images, -1), labels.ravel().astype(int)
    rank = np.random.default_rng(seed).permutation(images).argsort()  # folds of a random order of the images
    scores = np.zeros(len(truth))
    classifier = make_pipeline(
        StandardScaler(),
        FunctionTransformer(with_squares),
        StandardScaler(),
        LogisticRegression(C=INVERSE_REGULARISATION, class_weight="balanced", max_iter=2000),
    )
    with single_thread():
        for train, test in GroupKFold(n_splits=FOLDS).split(rows, truth, np.tile(rank, models)):
            scores[test] = classifier.fit(rows[train], truth[train]).predict_proba(rows[test])[:, 1]
    return scores.reshape(models, images)
