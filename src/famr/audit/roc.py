"""How well scores tell members from non-members: AUC, true positives at few false ones, accuracy, with intervals.

Where there are too few images for a figure it is None ("cannot tell"), never a number that looks like an answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from famr.errors import NumericsError, RequestError

LEVEL = 0.95
"""Of every interval."""
FEWEST = 20
"""Images of each kind below which no AUC and no accuracy is given: a bootstrap of fewer means nothing."""
DRAWS = 1000


@dataclass(frozen=True)
class Interval:
    """A measured figure and its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Roc:
    """Population figures of an attack; None where the images cannot tell."""

    auc: Interval | None
    tpr_at_1_percent: Interval | None
    tpr_at_01_percent: Interval | None
    accuracy: Interval | None
    """Mean of the shares of members and of non-members called right; None also where there is no threshold."""
    members: int
    non_members: int
    """Predictions that were scored; one model's answer to one image counts as one."""

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


@dataclass(frozen=True, eq=False)
class Scored:
    """Scores of an attack, the higher the more like a member, and the truth; neither seen nor unseen: left out."""

    scores: Tensor  # (models, images)
    seen: Tensor  # (models, images), bool
    unseen: Tensor  # (models, images), bool

    def __post_init__(self) -> None:
        if not self.scores.shape == self.seen.shape == self.unseen.shape or self.scores.ndim != 2:
            shapes = [tuple(part.shape) for part in (self.scores, self.seen, self.unseen)]
            raise RequestError(f"Scores and truth must be (models, images) alike, got {shapes}.", where="Scored")
        if bool((self.seen & self.unseen).any()):
            raise RequestError("An image cannot be both seen and unseen by a model.", where="Scored")
        if not bool(torch.isfinite(self.scores[self.seen | self.unseen]).all()):
            raise NumericsError("The scores of the attack are not all finite.", where="Scored", fix="Check the logits.")

    @classmethod
    def of_one_model(cls, scores: Tensor, member: Tensor) -> Scored:
        """One model's images, each a member or not."""
        return cls(scores[None], member.bool()[None], ~member.bool()[None])


def auc(scores: Tensor, member: Tensor) -> float:
    """The chance that a member scores above a non-member, ties counting one half.

    >>> auc(torch.tensor([3.0, 1.0, 1.0, 0.0]), torch.tensor([True, True, False, False]))
    0.875
    """
    return Curve(scores, member).read(torch.ones(len(scores), dtype=torch.double)).auc()


def image_auc(scored: Scored) -> Tensor:
    """For each image how well models that saw it are told from those that did not; NaN where one kind is missing."""
    found = []
    for scores, seen, unseen in zip(scored.scores.T, scored.seen.T, scored.unseen.T, strict=True):
        both = bool(seen.any()) and bool(unseen.any())
        found.append(auc(scores[seen | unseen], seen[seen | unseen]) if both else math.nan)
    return torch.tensor(found, dtype=torch.double)


def tpr_at(fpr: float, scores: Tensor, member: Tensor) -> Interval | None:
    """The share of members above a threshold that at most `fpr` of the non-members pass; images are independent.

    None with fewer than 1/fpr non-members: not one false positive would be allowed. The interval is for the share at
    the threshold that a share `fpr` of *all* non-members passes. That threshold is known only up to the sample, so
    it is bounded by order statistics first, and the share at either end by Clopper and Pearson: exact for any
    distribution, wide where few non-members are. Clopper–Pearson at the sample's own threshold would be too narrow.

    >>> tpr_at(0.001, torch.zeros(1500), torch.arange(1500) < 501) is None
    True
    """
    from scipy.stats import beta, binom

    positives, negatives = scores[member], scores[~member].sort(descending=True).values
    count, total = len(negatives), len(positives)
    allowed = _allowed(fpr, count)
    if allowed < 1 or total == 0:
        return None
    value = float((positives > negatives[allowed]).double().mean()) if allowed < count else 1.0
    miss = (1 - LEVEL) / 4  # threshold and share, each with two ends
    above_high, above_low = int(binom.ppf(miss, count, fpr)), int(binom.ppf(1 - miss, count, fpr))
    hits_low = 0 if above_high == 0 else int((positives > negatives[above_high - 1]).sum())
    hits_high = total if above_low >= count else int((positives >= negatives[above_low]).sum())
    low = 0.0 if hits_low == 0 else float(beta.ppf(miss, hits_low, total - hits_low + 1))
    high = 1.0 if hits_high == total else float(beta.ppf(1 - miss, hits_high + 1, total - hits_high))
    return Interval(value, min(low, value), max(high, value))


def roc(scored: Scored, *, threshold: float | None = None, seed: int = 0, draws: int = DRAWS) -> Roc:
    """All figures of an attack. Intervals by bootstrap over images and, where there are several, over models.

    An image and all its scores are drawn together, and so are a model and all its scores: they are not independent.
    For one model TPR has the exact interval of `tpr_at`. `threshold` is where the attack itself says "member".
    With fewer than about ten models of a kind the bootstrap over models is known to be too narrow.
    """
    used = scored.seen | scored.unseen
    curve = Curve(scored.scores[used], scored.seen[used])
    alone = len(scored.scores) == 1
    members, non_members = (int(kind.any(dim=0).sum()) for kind in (scored.seen, scored.unseen))  # images of each kind
    figures: dict[str, Callable[[Rates], float]] = {}
    if min(members, non_members) >= FEWEST:
        figures["auc"] = Rates.auc
        if threshold is not None:
            figures["accuracy"] = lambda rates: rates.accuracy(threshold)
        for fpr in (0.01, 0.001):
            if not alone and _allowed(fpr, non_members) >= 1:
                figures[f"tpr {fpr}"] = lambda rates, fpr=fpr: rates.tpr(fpr)  # type: ignore[misc]
    found = _intervals(figures, curve, scored, seed, draws)
    if alone:
        found |= {f"tpr {fpr}": tpr_at(fpr, scored.scores[used], scored.seen[used]) for fpr in (0.01, 0.001)}
    return Roc(
        auc=found.get("auc"),
        tpr_at_1_percent=found.get("tpr 0.01"),
        tpr_at_01_percent=found.get("tpr 0.001"),
        accuracy=found.get("accuracy"),
        members=int(scored.seen.sum()),
        non_members=int(scored.unseen.sum()),
    )


def _intervals(
    figures: dict[str, Callable[[Rates], float]], curve: Curve, scored: Scored, seed: int, draws: int
) -> dict[str, Interval | None]:
    """Each figure of the scores as they are, between its percentiles over the draws."""
    if not figures:
        return {}
    rows = [[figure(rates) for figure in figures.values()] for rates in _resampled(curve, scored, seed, draws)]
    ends = torch.tensor([(1 - LEVEL) / 2, (1 + LEVEL) / 2], dtype=torch.double)
    lows, highs = torch.tensor(rows, dtype=torch.double).quantile(ends, dim=0).tolist()
    once = curve.read(torch.ones(len(curve.order), dtype=torch.double))
    return {
        name: Interval(figure(once), low, high)
        for (name, figure), low, high in zip(figures.items(), lows, highs, strict=True)
    }


def _allowed(fpr: float, non_members: int) -> int:
    """How many false positives `fpr` allows; 0.29 · 100 is 29, whatever floating point says."""
    return math.floor(fpr * non_members + 1e-9)


def _resampled(curve: Curve, scored: Scored, seed: int, draws: int) -> Iterator[Rates]:
    """The curve of each draw; kinds of images, and of models, stay as many as they are."""
    generator = torch.Generator().manual_seed(seed)
    models, images = (_kinds(scored.seen.any(dim=side), scored.unseen.any(dim=side)) for side in (1, 0))
    used = (scored.seen | scored.unseen).flatten().nonzero()[:, 0]
    places = used[curve.order]  # of the sorted scores among all
    while draws:
        weight = torch.outer(_drawn(models, generator), _drawn(images, generator))
        rates = curve.read_sorted(weight.flatten().index_select(0, places))
        if min(float(rates.true[-1]), float(rates.false[-1])) > 0:
            draws -= 1
            yield rates


def _kinds(seen: Tensor, unseen: Tensor) -> list[Tensor]:
    """The places of those that are members only, non-members only, both or neither."""
    kind = 2 * seen.long() + unseen.long()
    return [(kind == value).nonzero()[:, 0] for value in sorted(set(kind.tolist()))]


def _drawn(kinds: list[Tensor], generator: torch.Generator) -> Tensor:
    """How often each is drawn, with replacement, among those of its kind."""
    weight = torch.zeros(sum(map(len, kinds)), dtype=torch.double)
    for places in kinds:
        picked = torch.randint(len(places), (len(places),), generator=generator)
        weight[places] = torch.bincount(picked, minlength=len(places)).double()
    return weight


class Curve:
    """The ROC of scores that may be weighted: sorted once, read many times."""

    def __init__(self, scores: Tensor, member: Tensor) -> None:
        if not bool(member.any()) or bool(member.all()):
            raise RequestError("An attack needs members and non-members to be measured on.", where="roc")
        falling, self.order = scores.double().sort(descending=True)
        self.member = member[self.order].double()
        last = torch.ones(len(scores), dtype=torch.bool)
        last[:-1] = falling[:-1] != falling[1:]
        ends = last.nonzero()[:, 0]  # ties stand or fall together
        self.ends: Tensor | slice = ends if len(ends) < len(scores) else slice(None)
        self.distinct = -falling[self.ends]  # negated: ascending, for a search

    def read(self, weight: Tensor) -> Rates:
        """The curve where each score counts so many times."""
        return self.read_sorted(weight[self.order])

    def read_sorted(self, weight: Tensor) -> Rates:
        """The same for weights in the order of the falling scores."""
        start = torch.zeros(1, dtype=torch.double)
        true = torch.cat([start, (weight * self.member).cumsum(0)[self.ends]])
        return Rates(self.distinct, torch.cat([start, weight.cumsum(0)[self.ends]]) - true, true)


@dataclass(frozen=True, eq=False)
class Rates:
    """False and true positives after each distinct score, from none to all."""

    distinct: Tensor
    """The scores, negated: ascending."""
    false: Tensor
    true: Tensor

    def curve(self) -> tuple[Tensor, Tensor]:
        """False and true positive rates, from 0 to 1."""
        return self.false / self.false[-1], self.true / self.true[-1]

    def auc(self) -> float:
        """The area, by trapezoids."""
        false, true = self.curve()
        return float(torch.trapezoid(true, false))

    def tpr(self, fpr: float) -> float:
        """The highest true positive rate whose false positive rate is at most `fpr`."""
        place = int(torch.searchsorted(self.false / self.false[-1], fpr + 1e-12, right=True)) - 1
        return float(self.true[place] / self.true[-1])

    def accuracy(self, threshold: float) -> float:
        """Balanced accuracy; a score on the threshold is half right."""
        above, level = (int(torch.searchsorted(self.distinct, -threshold, right=right)) for right in (False, True))
        true, false = (float((kind[above] + kind[level]) / 2 / kind[-1]) for kind in (self.true, self.false))
        return (true + 1 - false) / 2
