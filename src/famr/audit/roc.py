"""Performance of a membership attack: AUC, TPR at a fixed FPR, balanced accuracy, each with a 95 % interval.

A figure that the number of images cannot resolve is None ("cannot tell").
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from famr.audit.estimate import CONFIDENCE
from famr.errors import NumericsError, RequestError

FEWEST = 20
"""Members and non-members (images) below which there is no AUC and no accuracy: a bootstrap of fewer means nothing."""
DRAWS = 1000
"""Bootstrap samples of an attack's figures."""
FALSE_POSITIVE_RATES = (0.01, 0.001)
ROUNDING = 1e-12
"""By how much a false positive rate may exceed its limit, as sums of weights round."""

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Interval:
    """A value and its 95 % interval.

    Attributes:
        value: The point estimate.
        low: Lower end.
        high: Upper end.
    """

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class RocSummary:
    """Figures of an attack; None where there are too few images.

    Attributes:
        auc: Area under the ROC curve.
        tpr_at_1_percent: True positive rate at a false positive rate of at most 1 %.
        tpr_at_01_percent: True positive rate at a false positive rate of at most 0.1 %.
        accuracy: Balanced accuracy at the attack's own threshold; None also where it has none.
        members: Scored predictions on members; one model's prediction on one image counts as one.
        non_members: Scored predictions on non-members.
    """

    auc: Interval | None
    tpr_at_1_percent: Interval | None
    tpr_at_01_percent: Interval | None
    accuracy: Interval | None
    members: int
    non_members: int

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


@dataclass(frozen=True, eq=False)
class AttackScores:
    """Scores of an attack and the truth; a prediction that is neither seen nor unseen is left out.

    Attributes:
        scores: The higher the more likely a member, (models, images).
        seen: Whether the model was trained on the image (a member), bool (models, images).
        unseen: Whether the model was not trained on it (a non-member), bool (models, images).
    """

    scores: Tensor
    seen: Tensor
    unseen: Tensor

    def __post_init__(self) -> None:
        if not self.scores.shape == self.seen.shape == self.unseen.shape or self.scores.ndim != 2:
            shapes = [tuple(part.shape) for part in (self.scores, self.seen, self.unseen)]
            raise RequestError(
                f"Scores, seen and unseen must all be (models, images), got {shapes}.", where="AttackScores"
            )
        if bool((self.seen & self.unseen).any()):
            raise RequestError("An image cannot be both seen and unseen by a model.", where="AttackScores")
        if not bool(torch.isfinite(self.scores[self.seen | self.unseen]).all()):
            raise NumericsError(
                "The attack's scores are not all finite.", where="AttackScores", fix="Check the logits."
            )

    @classmethod
    def of_one_model(cls, scores: Tensor, member: Tensor) -> AttackScores:
        """Scores of one model.

        Args:
            scores: (images,).
            member: Whether each image is a member, (images,).
        """
        return cls(scores[None], member.bool()[None], ~member.bool()[None])


def auc(scores: Tensor, member: Tensor) -> float:
    """P(score of a member > score of a non-member) + ½ P(equal).

    Args:
        scores: (n,).
        member: bool (n,).

    Raises:
        RequestError: Without members or without non-members.

    >>> auc(torch.tensor([3.0, 1.0, 1.0, 0.0]), torch.tensor([True, True, False, False]))
    0.875
    """
    from sklearn.metrics import roc_auc_score

    require_both_kinds(member)
    return float(roc_auc_score(member.cpu().numpy(), scores.double().cpu().numpy()))


def image_auc(scored: AttackScores) -> Tensor:
    """AUC over models, image by image: P(score of a model that saw it > score of one that did not) + ½ P(equal).

    Args:
        scored: Scores of several models.

    Returns:
        (images,) as doubles; NaN for an image that all models saw or none did.
    """
    above = scored.scores[:, None] > scored.scores[None]  # (models, models, images)
    level = scored.scores[:, None] == scored.scores[None]
    pairs = scored.seen[:, None] & scored.unseen[None]
    return ((above.double() + level.double() / 2) * pairs).sum(dim=(0, 1)) / pairs.sum(dim=(0, 1))


def tpr_at(fpr: float, scores: Tensor, member: Tensor) -> Interval | None:
    """True positive rate at the threshold that at most `fpr` of the non-members exceed, for independent images.

    The interval is for the rate at the threshold that a share `fpr` of *all* non-members exceeds. The sample knows that
    threshold up to its order statistics only: they bound it first, and Clopper and Pearson's exact binomial interval
    [1934] bounds the rate at either end. It is valid for any distribution, and wide where there are few non-members.
    Clopper–Pearson at the sample's own threshold would be too narrow.

    Args:
        fpr: The false positive rate, from 0 to 1.
        scores: (n,).
        member: bool (n,).

    Returns:
        None with fewer than 1/fpr non-members, as not one false positive would be allowed.

    >>> tpr_at(0.001, torch.zeros(1500), torch.arange(1500) < 501) is None
    True
    """
    from scipy.stats import beta, binom

    positives, negatives = scores[member], scores[~member].sort(descending=True).values
    count, total = len(negatives), len(positives)
    allowed = false_positives_allowed(fpr, count)
    if allowed < 1 or total == 0:
        return None
    value = float((positives > negatives[allowed]).double().mean()) if allowed < count else 1.0
    miss = (1 - CONFIDENCE) / 4  # threshold and rate, each with two ends
    above_high, above_low = int(binom.ppf(miss, count, fpr)), int(binom.ppf(1 - miss, count, fpr))
    hits_low = 0 if above_high == 0 else int((positives > negatives[above_high - 1]).sum())
    hits_high = total if above_low >= count else int((positives >= negatives[above_low]).sum())
    low = 0.0 if hits_low == 0 else float(beta.ppf(miss, hits_low, total - hits_low + 1))
    high = 1.0 if hits_high == total else float(beta.ppf(1 - miss, hits_high + 1, total - hits_high))
    return Interval(value, min(low, value), max(high, value))


def false_positives_allowed(fpr: float, non_members: int) -> int:
    """⌊fpr · non_members⌋, safe from rounding.

    Args:
        fpr: The false positive rate.
        non_members: How many there are.

    >>> false_positives_allowed(0.29, 100), int(0.29 * 100)
    (29, 28)
    """
    return math.floor(fpr * non_members + 1e-9)


def require_both_kinds(member: Tensor) -> None:
    """Refuse scores of members only or of non-members only.

    Args:
        member: bool, any shape.

    Raises:
        RequestError: Without members or without non-members.
    """
    if not bool(member.any()) or bool(member.all()):
        raise RequestError("An attack must be measured on members and non-members.", where="roc")


def weighted_roc(scores: Array, member: Array, weights: Array) -> tuple[Array, Array]:
    """`sklearn.metrics.roc_curve(member, scores, sample_weight=weights)` for sorted scores.

    A bootstrap needs a thousand curves of the same scores: scikit-learn validates and sorts them each time, which takes
    some ten times as long.

    Args:
        scores: In descending order, (n,).
        member: bool (n,).
        weights: (n,); some above 0 for members and for non-members.

    Returns:
        False and true positive rates, from 0 to 1.

    >>> weighted_roc(np.array([2.0, 1.0, 1.0]), np.array([True, True, False]), np.array([1.0, 3.0, 1.0]))
    (array([0., 0., 1.]), array([0.  , 0.25, 1.  ]))
    """
    ends = np.flatnonzero(np.diff(scores, append=-np.inf))  # equal scores are called members together
    false, true = (np.cumsum(weights * kind)[ends] for kind in (~member, member))
    return np.append(0.0, false / false[-1]), np.append(0.0, true / true[-1])


def weighted_figures(
    scores: Array, member: Array, weights: Array, fprs: tuple[float, ...], threshold: float | None
) -> list[float]:
    """Figures of an attack in which each score counts `weights` times.

    Balanced accuracy is ½ (TPR + 1 − FPR) at the threshold; a score equal to it counts as half a "member".

    Args:
        scores: In descending order, (n,).
        member: bool (n,).
        weights: (n,).
        fprs: False positive rates at which the true positive rate is wanted.
        threshold: Above it the attack says "member"; None where it has no threshold.

    Returns:
        AUC, the true positive rate at each of `fprs`, and, with a threshold, balanced accuracy.
    """
    false, true = weighted_roc(scores, member, weights)
    figures = [np.trapezoid(true, false), *(true[false <= fpr + ROUNDING].max() for fpr in fprs)]
    if threshold is not None:
        called = (scores > threshold) + 0.5 * (scores == threshold)
        hit, false_alarm = (np.average(called[kind], weights=weights[kind]) for kind in (member, ~member))
        figures.append((hit + 1 - false_alarm) / 2)
    return [float(figure) for figure in figures]


def roc_summary(
    scored: AttackScores,
    *,
    threshold: float | None = None,
    seed: int = 0,
    draws: int = DRAWS,
    resample_models: bool = True,
) -> RocSummary:
    """All figures of an attack.

    The percentile bootstrap resamples images and models, each with all of its scores, as the scores of one image or of
    one model are not independent. It is stratified: as many images, and as many models, as in the data are members
    only, non-members only, or both. For one model, TPR has the interval of `tpr_at`. With fewer than about ten models
    of a kind the bootstrap over models is known to be too narrow.

    Args:
        scored: Scores and truth.
        threshold: Above it the attack says "member"; None for an attack without a threshold, which has no accuracy.
        seed: Of the bootstrap.
        draws: Bootstrap samples.
        resample_models: Whether models are resampled too; False for statements about these very models.
    """
    used = scored.seen | scored.unseen
    scores, member = scored.scores[used], scored.seen[used]
    require_both_kinds(member)
    one_model = len(scored.scores) == 1
    members, non_members = (int(kind.any(dim=0).sum()) for kind in (scored.seen, scored.unseen))  # images of each kind
    found: dict[str | float, Interval | None] = {}
    if min(members, non_members) >= FEWEST:
        resolved = [fpr for fpr in FALSE_POSITIVE_RATES if false_positives_allowed(fpr, non_members) >= 1]
        fprs = () if one_model else tuple(resolved)
        names = ("auc", *fprs, *(() if threshold is None else ("accuracy",)))
        intervals = _bootstrap(scored, fprs, threshold, seed, draws, resample_models)
        found = dict(zip(names, intervals, strict=True))
    if one_model:
        found |= {fpr: tpr_at(fpr, scores, member) for fpr in FALSE_POSITIVE_RATES}
    return RocSummary(
        auc=found.get("auc"),
        tpr_at_1_percent=found.get(0.01),
        tpr_at_01_percent=found.get(0.001),
        accuracy=found.get("accuracy"),
        members=int(scored.seen.sum()),
        non_members=int(scored.unseen.sum()),
    )


def _bootstrap(
    scored: AttackScores,
    fprs: tuple[float, ...],
    threshold: float | None,
    seed: int,
    draws: int,
    resample_models: bool,
) -> list[Interval]:
    """`weighted_figures`, each with its percentile interval over resampled models and images.

    `scipy.stats.bootstrap` resamples observations; here a model and an image are drawn with all of their scores.
    """
    generator = np.random.default_rng(seed)
    scores, seen = (each.flatten().cpu().numpy() for each in (scored.scores.double(), scored.seen))
    used = (scored.seen | scored.unseen).flatten().cpu().numpy().nonzero()[0]
    order = used[scores[used].argsort(kind="stable")[::-1]]
    scores, seen = scores[order], seen[order]
    models, images = (_strata(scored.seen.any(dim=axis), scored.unseen.any(dim=axis)) for axis in (1, 0))
    once = np.ones(len(scored.scores))
    samples: list[list[float]] = []
    while len(samples) < draws:
        model_counts = _drawn_counts(models, generator) if resample_models else once
        weights = np.outer(model_counts, _drawn_counts(images, generator)).ravel()[order]
        if weights[seen].any() and weights[~seen].any():
            samples.append(weighted_figures(scores, seen, weights, fprs, threshold))
    low, high = np.quantile(samples, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=0)
    values = weighted_figures(scores, seen, np.ones(len(order)), fprs, threshold)
    return [Interval(value, *ends) for value, *ends in zip(values, low.tolist(), high.tolist(), strict=True)]


def _strata(seen: Tensor, unseen: Tensor) -> list[Array]:
    """Indices of those that are members only, non-members only, both, or neither."""
    kind = (2 * seen.long() + unseen.long()).cpu().numpy()
    return [(kind == value).nonzero()[0] for value in np.unique(kind)]


def _drawn_counts(strata: list[Array], generator: np.random.Generator) -> Array:
    """How often each index is drawn, with replacement within its stratum."""
    drawn = np.concatenate([generator.choice(indices, len(indices)) for indices in strata])
    return np.bincount(drawn, minlength=len(drawn))
