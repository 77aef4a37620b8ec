"""LiRA: is an answer more like those of models that saw the image, or of models that did not? [Carlini et al. 2022]

U-LiRA asks the same of unlearned models: those that saw the image and unlearned it against retrained ones
[Hayes et al. 2024]. Good is what a coin gets: accuracy and AUC 0.5, TPR = FPR.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from famr.audit.roc import Roc, Scored, roc
from famr.errors import NumericsError, RequestError

Attack = Literal["online", "offline"]
THRESHOLD = 0.0
"""Of the online attack: above it the image is more likely to have been seen."""
OWN_SPREAD_FROM = 32
"""Models of each kind from which an image gets a spread of its own; with fewer all images share one."""
SMALLEST_SPREAD = 1e-6


def scaled_confidence(logits: Tensor, targets: Tensor) -> Tensor:
    """φ = z_y − logsumexp(other z) = log(p_y / (1 − p_y)), which is nearly normal over models; (…, images).

    From the logits: 1 − p_y would be 0 in floating point for every sure answer.

    >>> scaled_confidence(torch.tensor([[100.0, 0.0]]), torch.tensor([0]))
    tensor([100.], dtype=torch.float64)
    """
    if bool((targets < 0).any()):
        raise RequestError("An attack needs the class of every image.", where="targets", fix="Use labelled images.")
    z = logits.double()
    place = targets.expand(z.shape[:-1])[..., None]
    others = z.scatter(-1, place, -math.inf).logsumexp(dim=-1)
    confidence: Tensor = z.gather(-1, place)[..., 0] - others
    if not bool(torch.isfinite(confidence).all()):
        raise NumericsError("A model's answers are not all finite.", where="logits", fix="Check the model.")
    return confidence


@dataclass(frozen=True, eq=False)
class Population:
    """φ of shadow models, and which of them saw an image; an answer that is neither is not used."""

    phi: Tensor  # (models, images)
    seen: Tensor  # (models, images), bool: trained on the image (and, for U-LiRA, made to unlearn it)
    unseen: Tensor  # (models, images), bool: never saw it

    def __post_init__(self) -> None:
        Scored(self.phi, self.seen, self.unseen)  # the same shapes, disjoint, finite


def population(phi: Tensor, seen: Tensor) -> Population:
    """Shadow models, each trained on some of the images."""
    return Population(phi, seen, ~seen)


def unlearned_against_retrained(unlearned: Tensor, seen: Tensor, retrained: Tensor) -> Population:
    """For U-LiRA: φ of models that unlearned the images they had `seen`, and of models that never saw any of them.

    What an unlearned model says about images that it did not see is not used: a retrained model is the truth to match.
    """
    nothing = torch.zeros(retrained.shape, dtype=torch.bool)
    return Population(
        phi=torch.cat([unlearned, retrained]),
        seen=torch.cat([seen, nothing]),
        unseen=torch.cat([torch.zeros_like(seen), ~nothing]),
    )


def u_lira(unlearned: Tensor, retrained: Tensor, targets: Tensor, *, seed: int = 0) -> Roc:
    """U-LiRA on logits (models, images, classes): of models that all unlearned the images, and of retrained ones.

    Accuracy is at the attack's own threshold. At least three models of each kind.
    """
    return roc(u_lira_scored(unlearned, retrained, targets), threshold=THRESHOLD, seed=seed)


def u_lira_scored(unlearned: Tensor, retrained: Tensor, targets: Tensor) -> Scored:
    """Each model in turn, attacked with the others: image by image, is it one that unlearned or a retrained one?"""
    ours, theirs = (scaled_confidence(logits, targets) for logits in (unlearned, retrained))
    return lira_left_out(unlearned_against_retrained(ours, torch.ones(ours.shape, dtype=torch.bool), theirs))


def normals(phi: Tensor, used: Tensor, shared: bool) -> tuple[Tensor, Tensor]:
    """Mean and spread of each image's φ over the models that are `used`; `shared`: one spread for all images.

    The shared spread is that *within* images, Σ(φ − mean of its image)² / Σ(models − 1). The spread of all φ together
    would be that between images.

    >>> mean, spread = normals(torch.tensor([[1.0, 10.0], [3.0, 12.0]]), torch.ones(2, 2).bool(), shared=True)
    >>> mean.tolist(), round(float(spread[0]) ** 2, 6)
    ([2.0, 11.0], 2.0)
    """
    count = used.sum(dim=0)
    if int(count.min()) < 2:
        raise RequestError(
            "Some images have fewer than two models to compare with.",
            where=f"{int((count < 2).sum())} of {len(count)} images",
            fix="Train more shadow models.",
        )
    phi = torch.where(used, phi, 0.0).double()
    mean = phi.sum(dim=0) / count
    squares = torch.where(used, phi - mean, 0.0).square().sum(dim=0)
    variance = (squares.sum() / (count - 1).sum()).expand_as(mean) if shared else squares / (count - 1)
    return mean, variance.sqrt().clamp(min=SMALLEST_SPREAD)


def lira_scores(phi: Tensor, shadows: Population, attack: Attack = "online", *, shared: bool | None = None) -> Tensor:
    """How much each answer φ (images,) of one attacked model speaks for the image having been seen.

    online   log N(φ; μ_seen, σ_seen²) − log N(φ; μ_unseen, σ_unseen²)
    offline  (φ − μ_unseen) / σ_unseen: the paper's Pr[Z ≤ φ], before it rounds to 1. One-sided: an answer *less*
             sure than that of models which did not see the image is no sign of membership.

    The attacked model must not be among the shadows; `lira_left_out` sees to that. `shared` is `normals`', by
    default with fewer than 32 models of a kind.
    """
    kinds = (shadows.unseen,) if attack == "offline" else (shadows.unseen, shadows.seen)
    if shared is None:
        shared = min(int(kind.sum(dim=0).min()) for kind in kinds) < OWN_SPREAD_FROM
    z, log_spread = [], []
    for kind in kinds:
        mean, spread = normals(shadows.phi, kind, shared)
        z.append((phi.double() - mean) / spread)
        log_spread.append(spread.log())
    if attack == "offline":
        return z[0]
    return (z[0].square() - z[1].square()) / 2 + log_spread[0] - log_spread[1]


def lira_left_out(shadows: Population, attack: Attack = "online", *, shared: bool | None = None) -> Scored:
    """Attack each model of a population with the others: scores for `roc`, with `THRESHOLD` for the online attack.

    With the model itself one of the other kind is left out, image by image: so both normals rest on as many models
    whichever kind is attacked. Leaving out only the model would put the attack below chance where there is nothing
    to find; leaving it in would put it above.
    """
    counts = {"seen": shadows.seen.sum(dim=0), "unseen": shadows.unseen.sum(dim=0)}
    needed = ("unseen",) if attack == "offline" else ("seen", "unseen")
    for name in needed:
        if int(counts[name].min()) < 3:
            raise RequestError(
                f"Some images have fewer than three models that are `{name}`.",
                where=f"{int((counts[name] < 3).sum())} of {len(counts[name])} images",
                fix="Train more shadow models.",
            )
    if shared is None:
        shared = min(int(counts[name].min()) for name in needed) <= OWN_SPREAD_FROM
    rank_seen, rank_unseen = shadows.seen.cumsum(dim=0) - 1, shadows.unseen.cumsum(dim=0) - 1
    scores = torch.zeros(shadows.phi.shape, dtype=torch.double)
    for model in range(len(shadows.phi)):
        seen, unseen = shadows.seen.clone(), shadows.unseen.clone()
        is_seen, is_unseen = shadows.seen[model], shadows.unseen[model]
        unseen &= ~(is_seen & (rank_unseen == rank_seen[model] % counts["unseen"].clamp(min=1)))
        seen &= ~(is_unseen & (rank_seen == rank_unseen[model] % counts["seen"].clamp(min=1)))
        seen[model] = unseen[model] = False
        others = Population(shadows.phi, seen, unseen)
        scores[model] = lira_scores(shadows.phi[model], others, attack, shared=shared)
    return Scored(scores, shadows.seen, shadows.unseen)
