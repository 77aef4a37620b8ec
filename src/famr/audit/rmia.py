"""RMIA: is the model more confident about an image, relative to reference models, than about images of a population?

[Zarifzadeh et al. 2024]: LR(x, z) = [p(x|θ) / p(x)] / [p(z|θ) / p(z)], and the score of x is the share of population
images z with LR(x, z) ≥ γ. It works with one to four reference models, where LiRA's normals cannot be fitted.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from famr.errors import NumericsError, RequestError

GAMMA = 2.0
"""γ: how many times as likely an image must be."""
OFFLINE_SCALE = 0.3
"""a: the paper's correction for references none of which saw the image."""


def true_log_probability(logits: Tensor, targets: Tensor) -> Tensor:
    """log p_y; as a probability, every confident prediction would be 1 in floating point.

    Args:
        logits: (…, images, classes).
        targets: (images,).

    Returns:
        (…, images) as doubles.

    Raises:
        RequestError: For an image without a class.
        NumericsError: For a value that is not finite.

    >>> true_log_probability(torch.tensor([[0.0, 0.0]]), torch.tensor([1])).exp().round(decimals=6)
    tensor([0.5000], dtype=torch.float64)
    """
    if bool((targets < 0).any()):
        raise RequestError("An attack needs the class of every image.", where="targets", fix="Use labelled images.")
    log_p = torch.log_softmax(logits.double(), dim=-1)
    log_p_true: Tensor = log_p.gather(-1, targets.expand(log_p.shape[:-1])[..., None])[..., 0]
    if not bool(torch.isfinite(log_p_true).all()):
        raise NumericsError("A model's logits are not all finite.", where="logits", fix="Check the model.")
    return log_p_true


def log_marginal(references: Tensor, seen: Tensor | None = None, a: float = OFFLINE_SCALE) -> Tensor:
    """log p(x): how probable the true class of x is over all models, half of which saw x.

    With references of both kinds, p(x) = ½(mean p of those that saw x + mean p of those that did not). Where no
    reference saw x, those that would have are taken to predict a·p + (1 − a), so p(x) = ½((1 + a)·p + 1 − a).

    Args:
        references: log p_y, (models, images).
        seen: Which reference saw which image, bool (models, images); None: no reference saw any.
        a: 0 ≤ a ≤ 1.

    Returns:
        (images,).

    Raises:
        RequestError: Without references, for `a` out of range, or where some images have references of both kinds and
            others have not.

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
    unseen = _log_mean_exp(references, ~seen)
    if bool(seen.any()):
        return torch.logaddexp(_log_mean_exp(references, seen), unseen) - math.log(2)
    uncertain = math.log((1 - a) / 2) if a < 1 else -math.inf
    return torch.logaddexp(unseen + math.log((1 + a) / 2), torch.full_like(unseen, uncertain))


def _log_mean_exp(values: Tensor, used: Tensor) -> Tensor:
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
    a: float = OFFLINE_SCALE,
) -> Tensor:
    """The share of population images z with LR(x, z) ≥ γ, for each image x.

    All images are compared with the same population, so their order is that of p(x|θ)/p(x); scores are multiples of
    1/|population|, and images beyond either end tie. A population smaller than 1/FPR cannot resolve that FPR.

    Args:
        target: log p_y of the attacked model on the audited images, (images,).
        references: The same of the reference models, (models, images).
        population_target: log p_y of the attacked model on images that no model saw, (population,).
        population_references: The same of the reference models, (models, population).
        seen: Which reference saw which audited image, bool (models, images); None: no reference saw any.
        gamma: γ > 0.
        a: As in `log_marginal`.

    Returns:
        (images,); the higher the more likely a member.

    Raises:
        RequestError: Without a population, or for parameters out of range.
    """
    if population_target.numel() == 0:
        raise RequestError("RMIA needs population images.", where="population", fix="Give held-out images.")
    if gamma <= 0:
        raise RequestError(f"`gamma` must be above 0, got {gamma}.", where="RMIA")
    ratio = target - log_marginal(references, seen, a)
    population = (population_target - log_marginal(population_references, None, a)).sort().values
    beaten = torch.searchsorted(population, ratio - math.log(gamma), right=True)
    return beaten.double() / len(population)
