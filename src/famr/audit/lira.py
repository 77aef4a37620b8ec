"""LiRA: is a prediction more like those of models that saw the image, or of models that did not? [Carlini et al. 2022]

U-LiRA asks the same of unlearned models: those that saw the image and unlearned it against retrained ones
[Hayes et al. 2024]. A perfect result is that of guessing: accuracy and AUC 0.5, TPR = FPR.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from famr.audit.roc import AttackScores, RocSummary, roc_summary
from famr.errors import NumericsError, RequestError

Attack = Literal["online", "offline"]
THRESHOLD = 0.0
"""Of the online attack: above it the image is more likely to have been seen."""
OWN_VARIANCE_FROM = 32
"""Models of each kind from which an image has a variance of its own; with fewer, all images share one."""
SMALLEST_DEVIATION = 1e-6
"""Of a fitted normal: models whose predictions are all equal have none."""


def scaled_confidence(logits: Tensor, targets: Tensor) -> Tensor:
    """φ = z_y − logsumexp_{k≠y} z_k = log(p_y / (1 − p_y)), which is nearly normal over models.

    Computed from the logits: 1 − p_y would be 0 in floating point for every confident prediction.

    Args:
        logits: (…, images, classes).
        targets: (images,).

    Returns:
        (…, images) as doubles.

    Raises:
        RequestError: For an image without a class.
        NumericsError: For a value that is not finite.

    >>> scaled_confidence(torch.tensor([[100.0, 0.0]]), torch.tensor([0]))
    tensor([100.], dtype=torch.float64)
    """
    if bool((targets < 0).any()):
        raise RequestError("An attack needs the class of every image.", where="targets", fix="Use labelled images.")
    z = logits.double()
    index = targets.expand(z.shape[:-1])[..., None]
    remaining = z.scatter(-1, index, -math.inf).logsumexp(dim=-1)
    confidence: Tensor = z.gather(-1, index)[..., 0] - remaining
    if not bool(torch.isfinite(confidence).all()):
        raise NumericsError("A model's logits are not all finite.", where="logits", fix="Check the model.")
    return confidence


@dataclass(frozen=True, eq=False)
class ShadowConfidences:
    """φ of shadow models, and which of them saw an image; a value that is neither is not used.

    Attributes:
        phi: (models, images).
        seen: Trained on the image (and, for U-LiRA, made to unlearn it), bool (models, images).
        unseen: Not trained on the image, bool (models, images).
    """

    phi: Tensor
    seen: Tensor
    unseen: Tensor

    def __post_init__(self) -> None:
        AttackScores(self.phi, self.seen, self.unseen)  # the same shapes, disjoint, finite

    @classmethod
    def of_trained(cls, phi: Tensor, seen: Tensor) -> ShadowConfidences:
        """For LiRA: shadow models, each trained on some of the images.

        Args:
            phi: (models, images).
            seen: Which model was trained on which image, bool (models, images).
        """
        return cls(phi, seen, ~seen)

    @classmethod
    def of_unlearned(cls, unlearned: Tensor, seen: Tensor, retrained: Tensor) -> ShadowConfidences:
        """For U-LiRA: models that unlearned the images they had seen, and models that never saw any of them.

        What an unlearned model predicts for images that it did not see is not used: a retrained model is the truth to
        match.

        Args:
            unlearned: φ of the unlearned models, (models, images).
            seen: Which of them saw, and unlearned, which image, bool (models, images).
            retrained: φ of the retrained models, (models', images).
        """
        none = torch.zeros(retrained.shape, dtype=torch.bool)
        return cls(
            phi=torch.cat([unlearned, retrained]),
            seen=torch.cat([seen, none]),
            unseen=torch.cat([torch.zeros_like(seen), ~none]),
        )


def u_lira(unlearned: Tensor, retrained: Tensor, targets: Tensor, *, seed: int = 0) -> RocSummary:
    """Figures of U-LiRA; accuracy is at the attack's own threshold.

    Args:
        unlearned: Logits of models that all unlearned the images, (models, images, classes); at least three models.
        retrained: Logits of models that never saw them, (models', images, classes); at least three models.
        targets: (images,).
        seed: Of the bootstrap.
    """
    return roc_summary(u_lira_scores(unlearned, retrained, targets), threshold=THRESHOLD, seed=seed)


def u_lira_scores(unlearned: Tensor, retrained: Tensor, targets: Tensor) -> AttackScores:
    """Scores of each model in turn, attacked with the remaining ones: did it unlearn the image or never see it?

    Args:
        unlearned: Logits of models that all unlearned the images, (models, images, classes).
        retrained: Logits of models that never saw them, (models', images, classes).
        targets: (images,).
    """
    ours, theirs = (scaled_confidence(logits, targets) for logits in (unlearned, retrained))
    return leave_one_out_scores(ShadowConfidences.of_unlearned(ours, torch.ones(ours.shape, dtype=torch.bool), theirs))


def normals(phi: Tensor, used: Tensor, shared: bool) -> tuple[Tensor, Tensor]:
    """Mean μ and standard deviation σ of each image's φ over the models that are used.

    The shared variance is that *within* images, Σ(φ − μ of its image)² / Σ(models − 1). The variance of all φ together
    would be that between images.

    Args:
        phi: (models, images).
        used: bool (models, images); at least two models an image.
        shared: Whether all images share one σ.

    Returns:
        μ and σ, each (images,).

    Raises:
        RequestError: For an image with fewer than two models.

    >>> mean, deviation = normals(torch.tensor([[1.0, 10.0], [3.0, 12.0]]), torch.ones(2, 2).bool(), shared=True)
    >>> mean.tolist(), round(float(deviation[0]) ** 2, 6)
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
    return mean, variance.sqrt().clamp(min=SMALLEST_DEVIATION)


def lira_scores(
    phi: Tensor, shadows: ShadowConfidences, attack: Attack = "online", *, shared: bool | None = None
) -> Tensor:
    """How strongly each φ of one attacked model speaks for the image having been seen.

    online   log N(φ; μ_seen, σ_seen²) − log N(φ; μ_unseen, σ_unseen²)
    offline  (φ − μ_unseen) / σ_unseen: the paper's Pr[Z ≤ φ], before it rounds to 1. One-sided: a prediction *less*
             confident than that of models which did not see the image is no sign of membership.

    Args:
        phi: (images,).
        shadows: The attacked model must not be among them; `leave_one_out_scores` ensures that.
        attack: online needs models that saw each image, offline does not.
        shared: Whether all images share one σ; None: with fewer than 32 models of a kind.

    Returns:
        (images,); the higher the more likely a member.
    """
    kinds = (shadows.unseen,) if attack == "offline" else (shadows.unseen, shadows.seen)
    if shared is None:
        shared = min(int(kind.sum(dim=0).min()) for kind in kinds) < OWN_VARIANCE_FROM
    z, log_deviation = [], []
    for kind in kinds:
        mean, deviation = normals(shadows.phi, kind, shared)
        z.append((phi.double() - mean) / deviation)
        log_deviation.append(deviation.log())
    if attack == "offline":
        return z[0]
    return (z[0].square() - z[1].square()) / 2 + log_deviation[0] - log_deviation[1]


def leave_one_out_scores(
    shadows: ShadowConfidences, attack: Attack = "online", *, shared: bool | None = None
) -> AttackScores:
    """LiRA scores of each shadow model, attacked with the remaining ones.

    With the model itself, one of the opposite kind is left out, image by image: so both normals rest on as many models
    whichever kind is attacked. Leaving out the model alone would put the attack below chance where there is nothing
    to find; leaving it in would put it above.

    Args:
        shadows: At least three models of each kind that the attack uses, for each image.
        attack: As in `lira_scores`.
        shared: As in `lira_scores`; None: with at most 32 models of a kind, as one is left out.

    Raises:
        RequestError: With too few models.
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
        shared = min(int(counts[name].min()) for name in needed) <= OWN_VARIANCE_FROM
    rank_seen, rank_unseen = shadows.seen.cumsum(dim=0) - 1, shadows.unseen.cumsum(dim=0) - 1
    scores = torch.zeros(shadows.phi.shape, dtype=torch.double)
    for model in range(len(shadows.phi)):
        seen, unseen = shadows.seen.clone(), shadows.unseen.clone()
        is_seen, is_unseen = shadows.seen[model], shadows.unseen[model]
        unseen &= ~(is_seen & (rank_unseen == rank_seen[model] % counts["unseen"].clamp(min=1)))
        seen &= ~(is_unseen & (rank_seen == rank_unseen[model] % counts["seen"].clamp(min=1)))
        seen[model] = unseen[model] = False
        remaining = ShadowConfidences(shadows.phi, seen, unseen)
        scores[model] = lira_scores(shadows.phi[model], remaining, attack, shared=shared)
    return AttackScores(scores, shadows.seen, shadows.unseen)
