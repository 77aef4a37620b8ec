"""The proxy target: for classes, concepts, samples and styles.

    p̂   = softmax(z/τ) of the proxy over the classes that it was trained on and that are not forgotten
    p̃_k = p̂_k · (1 − Σ_{j unknown} b_j) for the classes it knows, b_k for those it was not trained on
    q   ∝ (p̃ · b)^{1/2τ'}, with τ' such that the mean entropy of q is that of p̃

z are the logits of the proxy, b is the *base*: the masked target where classes are forgotten, the reference target (or
without labels the tempered one) for samples. What a model confuses an unseen class with comes from generalisation, so
that the original, which saw the class, does not know it; the proxy does, but it was trained for a fraction of the
epochs. The geometric mean of both is nearer to retrained models than either.

Where whole classes F are forgotten, a demotion keeps their log-odds below those that the proxy gives:

    γ · max(0, ℓ(z_θ) − ℓ(z))²,   ℓ(z) = log Σ_{f ∈ F∖K} e^{z_f} − log Σ_{k ∈ K∖F} e^{z_k},   K: classes the proxy knows
"""

from __future__ import annotations

from typing import ClassVar, Self

import torch
from torch import Tensor

from famr.errors import RequestError
from famr.losses.objective import at_least_float32, log_odds
from famr.metrics.forgetting import entropy
from famr.targets.base import ProxyPredictions, Target, TargetInputs
from famr.targets.demotion import OddsCeiling
from famr.targets.masked import MaskedTarget, masked_target
from famr.targets.reference import ReferenceTarget
from famr.targets.tempered import TemperedTarget, matching_temperature, tempered_target

SMALLEST = 1e-30
"""Probabilities of the base below this one, which may have been rounded to zero, count as this one."""


class ProxyTarget(Target):
    """The prediction of a short-trained proxy that never saw the forget set, mixed with the original's: for anything.

    The original's part is the masked target for classes and concepts and the reference target for samples; a style
    has the proxy's prediction alone.
    """

    needs_proxy: ClassVar[bool] = True
    # One class of 20 of CIFAR-100: log-odds −5.7 and two-sample AUC 0.71 without, −7.4 and 0.67 with it; retrained
    # models have −8.5 and 0.55 to 0.63. With z/τ, which goes further, −11.1 and 0.86.
    default_demotion: ClassVar[float | None] = 0.03

    @classmethod
    def build(cls, inputs: TargetInputs) -> Self:
        """See `Target.build`."""
        if inputs.proxy is None:
            raise RequestError(
                "The proxy target needs a proxy: a model that never saw the forget set.",
                where="target",
                fix="Give the retained images, or a sketch with proxies (famr sketch --proxies).",
            )
        forgotten = torch.tensor(inputs.forgotten if inputs.forgets_classes else (), dtype=torch.long)
        base = None if inputs.style is not None else base_target(inputs, forgotten)
        ceiling = odds_ceiling(inputs.proxy, forgotten) if len(forgotten) else None
        return cls(proxy_target(inputs.proxy, forgotten, base), demotion=ceiling)


def base_target(inputs: TargetInputs, forgotten: Tensor) -> Tensor:
    """b: what the original predicts, as far as it may know.

    Args:
        inputs: The request and the original's predictions.
        forgotten: Indices of the classes that are forgotten whole.
    """
    if inputs.held_out is None:  # nothing to match its confidence with; the proxy's is what counts in the end
        return masked_target(inputs.forget.logits, forgotten, temperature=1.0)
    base: type[Target] = TemperedTarget
    if inputs.forgets_classes:
        base = MaskedTarget
    elif inputs.held_out.margins is not None and inputs.forget.labelled:
        base = ReferenceTarget
    return base.build(inputs).probabilities


def proxy_target(proxy: ProxyPredictions, forgotten: Tensor, base: Tensor | None) -> Tensor:
    """q of the module's equations.

    Args:
        proxy: Its predictions on the forget set.
        forgotten: Indices of the classes that are forgotten whole.
        base: b, (images, classes), 0 for forgotten classes; None: q = p̂.

    Raises:
        RequestError: A proxy knows none of the remaining classes, or without a base not all of them.

    >>> z = torch.tensor([[5.0, 1.0, 1.0, 0.0]])
    >>> known = torch.tensor([[True, True, True, False]])
    >>> alone = ProxyPredictions(z, known, torch.ones(1))
    >>> base = torch.tensor([[0.0, 0.25, 0.25, 0.5]])
    >>> proxy_target(alone, torch.tensor([0]), base)
    tensor([[0.0000, 0.2500, 0.2500, 0.5000]])
    """
    known = proxy.known.index_fill(-1, forgotten, False)
    remaining = torch.ones_like(known).index_fill(-1, forgotten, False)
    if not bool(known.any(dim=-1).all()) or (base is None and not torch.equal(known, remaining)):
        raise RequestError(
            "The proxies were not trained on the classes that this request leaves.",
            where="target proxy",
            fix="Use --effort quick, or train a proxy for this request: give the retained images and no sketch.",
        )
    logits = (at_least_float32(proxy.logits) / proxy.temperature[:, None]).masked_fill(~known, -torch.inf)
    log_prediction = torch.log_softmax(logits, dim=-1)
    if base is None:
        return log_prediction.exp()
    log_base = base.to(log_prediction).clamp(min=SMALLEST).log().index_fill(-1, forgotten, -torch.inf)
    completed = complete(log_prediction, known, log_base)
    mixed = 0.5 * (completed + log_base)
    return tempered_target(mixed, matching_temperature(mixed, float(entropy(completed).mean())))


def odds_ceiling(proxy: ProxyPredictions, forgotten: Tensor) -> OddsCeiling:
    """The log-odds of the forgotten classes that a proxy never saw against the remaining ones that it knows.

    They are not re-tempered: a proxy is trained for a fraction of the epochs, so that a retrained model has lower ones.

    Args:
        proxy: Its predictions on the forget set.
        forgotten: Indices of the classes that are forgotten whole.

    >>> z, known = torch.tensor([[-4.0, 1.0, 1.0, 9.0]]), torch.tensor([[False, True, True, False]])
    >>> odds_ceiling(ProxyPredictions(z, known, torch.ones(1)), torch.tensor([0])).highest  # −4 − (1 + log 2)
    tensor([-5.6931])
    """
    whole = torch.zeros_like(proxy.known).index_fill(-1, forgotten, True)
    unseen, others = whole & ~proxy.known, proxy.known & ~whole
    return OddsCeiling(unseen, others, log_odds(proxy.logits, unseen, others))


def complete(log_prediction: Tensor, known: Tensor, log_base: Tensor) -> Tensor:
    """log p̃: the prediction over the classes a proxy knows, and the base's probability for those it does not.

    Args:
        log_prediction: log p̂, (images, classes).
        known: Which classes the proxy knows, (images, classes).
        log_base: log b, (images, classes).

    >>> p, b = torch.tensor([[0.9, 0.1, 0.0]]), torch.tensor([[0.5, 0.3, 0.2]])
    >>> complete(p.log(), torch.tensor([[True, True, False]]), b.log()).exp()
    tensor([[0.7200, 0.0800, 0.2000]])
    """
    mass_of_known = log_base.masked_fill(~known, -torch.inf).logsumexp(dim=-1, keepdim=True)
    return torch.where(known, log_prediction + mass_of_known, log_base)
