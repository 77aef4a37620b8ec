"""RMIA: is the model surer of an image, compared with reference models, than of images from the population?

[Zarifzadeh et al. 2024]: LR(x, z) = [p(x|θ) / p(x)] / [p(z|θ) / p(z)], and the score of x is the share of population
images z with LR(x, z) ≥ γ. It works with one to four reference models, where LiRA's normals cannot be fitted.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from famr.errors import NumericsError, RequestError

GAMMA = 2.0
A = 0.3


def true_log_probability(logits: Tensor, targets: Tensor) -> Tensor:
    """log p_y, (…, images); as a probability, every sure answer would be 1 in floating point.

    >>> true_log_probability(torch.tensor([[0.0, 0.0]]), torch.tensor([1])).exp().round(decimals=6)
    tensor([0.5000], dtype=torch.float64)
    """
    if bool((targets < 0).any()):
        raise RequestError("An attack needs the class of every image.", where="targets", fix="Use labelled images.")
    log_p = torch.log_softmax(logits.double(), dim=-1)
    found: Tensor = log_p.gather(-1, targets.expand(log_p.shape[:-1])[..., None])[..., 0]
    if not bool(torch.isfinite(found).all()):
        raise NumericsError("A model's answers are not all finite.", where="logits", fix="Check the model.")
    return found


def log_marginal(references: Tensor, seen: Tensor | None = None, a: float = A) -> Tensor:
    """log p(x), how probable the true class is over all models, from the log p_y of references (models, images).

    Half of all models saw x: p(x) = ½(mean p of those that saw it + mean p of those that did not). Where no reference
    saw x, those that would have are taken to say a·p + (1 − a), so p(x) = ½((1 + a)·p + 1 − a), 0 ≤ a ≤ 1.

    >>> half = torch.tensor([[0.5]]).log()
    >>> round(float(log_marginal(half, a=0.5).exp()), 6)  # ½(1.5 · 0.5 + 0.5)
    0.625
    """
    if len(references) == 0:
        raise RequestError("RMIA needs at least one reference model.", where="references")
    if not 0 <= a <= 1:
        raise RequestError(f"`a` must be from 0 to 1, got {a}.", where="RMIA")
    seen = torch.zeros(references.shape, dtype=torch.bool) if seen is None else seen
    out_counts, in_counts = (~seen).sum(dim=0), seen.sum(dim=0)
    if bool((out_counts == 0).any()) or (bool(seen.any()) and bool((in_counts == 0).any())):
        raise RequestError(
            "Of every image, either no reference may have seen it, or some have and some have not.",
            where=f"{len(references)} references",
            fix="Use references that saw none of the images, or pairs trained on complementary halves.",
        )
    unseen = _log_mean(references, ~seen)
    if bool(seen.any()):
        return torch.logaddexp(_log_mean(references, seen), unseen) - math.log(2)
    unsure = math.log((1 - a) / 2) if a < 1 else -math.inf
    return torch.logaddexp(unseen + math.log((1 + a) / 2), torch.full_like(unseen, unsure))


def _log_mean(values: Tensor, used: Tensor) -> Tensor:
    """log of the mean of exp(values) over the models that are used."""
    return values.masked_fill(~used, -math.inf).logsumexp(dim=0) - used.sum(dim=0).log()


def rmia_scores(
    target: Tensor,
    references: Tensor,
    population_target: Tensor,
    population_references: Tensor,
    *,
    seen: Tensor | None = None,
    gamma: float = GAMMA,
    a: float = A,
) -> Tensor:
    """The share of population images that each image beats, (images,); all arguments are log p_y.

    `target` (images,) and `references` (models, images) answer the audited images, the others the population, which
    neither the attacked model nor a reference saw. `seen` says which reference saw which audited image.

    All images meet the same population, so their order is that of p(x|θ)/p(x); scores come in steps of 1/|population|,
    and images beyond either end tie. A population smaller than 1/FPR cannot resolve that FPR.
    """
    if population_target.numel() == 0:
        raise RequestError("RMIA needs population images.", where="population", fix="Give held-out images.")
    if gamma <= 0:
        raise RequestError(f"`gamma` must be above 0, got {gamma}.", where="RMIA")
    ratio = target - log_marginal(references, seen, a)
    population = (population_target - log_marginal(population_references, None, a)).sort().values
    beaten = torch.searchsorted(population, ratio - math.log(gamma), right=True)
    return beaten.double() / len(population)
