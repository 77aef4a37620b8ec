"""The tell-tale test: can the answers on forgotten images be told from those of a model that never saw them?

A uniform answer forgets, and shows what was forgotten. An attacker sees answers to forgotten images, from the unlearned
model or from a retrained one, and has to say which. AUC 0.5 is a coin; two retrained models of different seeds set the
measure of what cannot be asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from famr.audit.roc import Curve
from famr.losses.objective import at_least_float32
from famr.metrics.forgetting import entropy

NEIGHBOURS = 5
FOLDS = 5
TREES = 40
RESAMPLES = 500


@dataclass(frozen=True)
class TellTale:
    """How well the attacker does."""

    auc: float
    low: float
    high: float
    """A 95 % interval, by drawing images again."""
    images: int
    by_feature: dict[str, float]
    """The AUC of each feature alone, either way round."""


def traces(logits: Tensor, near: Tensor) -> Tensor:
    """What the attacker looks at, (images, 3): entropy, lead of the first answer over the second in log-odds, and the
    share of the answer that goes to the classes nearest to the forgotten one (`near`, class indices)."""
    logits = at_least_float32(logits)
    first, second = logits.topk(2, dim=-1).values.unbind(dim=-1)
    mass = torch.softmax(logits, dim=-1)[:, near].sum(dim=-1)
    return torch.stack([entropy(logits), first - second, mass], dim=-1)


FEATURES = ("entropy", "margin", "neighbour mass")


def tell_tale(unlearned: Tensor, retrained: Sequence[Tensor], near: Tensor, seed: int = 0) -> TellTale:
    """Attack: a random forest on the traces, trained on some images and scored on others.

    `unlearned` and each of `retrained` are logits on the same forget images. An image is in the training part for
    all models or for none, so that nothing is learned about single images.
    """
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.model_selection import GroupKFold

    models = [unlearned, *retrained]
    features = torch.cat([traces(logits, near) for logits in models]).double().cpu().numpy()
    images = np.tile(np.arange(len(unlearned)), len(models))
    labels = np.repeat([1] + [0] * len(retrained), len(unlearned))
    order = np.random.default_rng(seed).permutation(len(unlearned))  # folds of a random order of the images
    groups = order.argsort()[images]
    scores = np.zeros(len(labels))
    for train, test in GroupKFold(n_splits=FOLDS).split(features, labels, groups):
        forest = RandomForestClassifier(
            n_estimators=TREES, min_samples_leaf=5, class_weight="balanced", random_state=seed
        ).fit(features[train], labels[train])
        scores[test] = forest.predict_proba(features[test])[:, 1]
    alone = {name: float(_either_way(_auc(labels, features[:, place]))) for place, name in enumerate(FEATURES)}
    low, high = _interval(labels, scores, images, seed)
    return TellTale(_auc(labels, scores), low, high, len(unlearned), alone)


def _auc(labels: np.ndarray, scores: np.ndarray) -> float:
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(labels, scores))


def _either_way(auc: float) -> float:
    return max(auc, 1 - auc)


def _interval(labels: np.ndarray, scores: np.ndarray, images: np.ndarray, seed: int) -> tuple[float, float]:
    """Between the 2.5th and the 97.5th percentile over draws of the images with replacement."""
    draws, count = torch.Generator().manual_seed(seed), int(images.max()) + 1
    curve, image = Curve(torch.from_numpy(scores), torch.from_numpy(labels == 1)), torch.from_numpy(images)
    found = []
    for _ in range(RESAMPLES):
        times = torch.bincount(torch.randint(count, (count,), generator=draws), minlength=count).double()
        found.append(curve.read(times[image]).auc())
    low, high = np.percentile(found, [2.5, 97.5])
    return float(low), float(high)


def before_and_after(
    original: Tensor, unlearned: Tensor, original_elsewhere: Tensor, unlearned_elsewhere: Tensor
) -> float:
    """AUC of one who holds both models and calls those images forgotten on which the answers moved most.

    The four are logits on forget images and on other images. Near 1 for any method that works: stated, not judged.
    """
    from famr.metrics.forgetting import kl_divergence

    moved = torch.cat([kl_divergence(original, unlearned), kl_divergence(original_elsewhere, unlearned_elsewhere)])
    labels = np.array([1] * len(original) + [0] * len(original_elsewhere))
    return _auc(labels, moved.double().cpu().numpy())
