"""How far an unlearned model is from one retrained without the forget set."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from famr.losses.objective import at_least_float32


def js_divergence(logits: Tensor, other_logits: Tensor) -> Tensor:
    """Jensen–Shannon divergence of two models' predictions.

    JS = ½ KL(p ‖ m) + ½ KL(q ‖ m) with m = ½(p + q).

    Args:
        logits: Of one model, (images, classes).
        other_logits: Of the other model, on the same images.

    Returns:
        (images,), in nats, at most ln 2.

    >>> js_divergence(torch.tensor([[200.0, 0.0]]), torch.tensor([[0.0, 200.0]]))
    tensor([0.6931])
    """
    p = torch.softmax(at_least_float32(logits), dim=-1)
    q = torch.softmax(at_least_float32(other_logits), dim=-1)
    entr = torch.special.entr
    divergence: Tensor = (entr((p + q) / 2) - (entr(p) + entr(q)) / 2).sum(dim=-1)
    return divergence.clamp(min=0.0)


def gap(unlearned: float | None, retrained: float | None) -> float | None:
    """|m(unlearned) − m(retrained)| of a metric m.

    Args:
        unlearned: The metric of the unlearned model; None where it is not available.
        retrained: The same of the retrained model.

    Returns:
        None where either is None.

    >>> gap(0.7, 0.5) == abs(0.7 - 0.5), gap(0.7, None)
    (True, None)
    """
    if unlearned is None or retrained is None:
        return None
    return abs(unlearned - retrained)


def average_gap(unlearned: Mapping[str, float], retrained: Mapping[str, float]) -> float:
    """Avg. Gap: the mean of |m(unlearned) − m(retrained)| over metrics m.

    Args:
        unlearned: Metrics by name, as fractions.
        retrained: The same metrics of the retrained model.

    Raises:
        ValueError: The two do not have the same metrics, or none.

    >>> average_gap({"test": 0.8, "forget": 0.9}, {"test": 0.75, "forget": 0.75}).__round__(3)
    0.1
    """
    _require_same_metrics(unlearned, retrained)
    return sum(abs(unlearned[name] - retrained[name]) for name in unlearned) / len(unlearned)


def tug_of_war(unlearned: Mapping[str, float], retrained: Mapping[str, float]) -> float:
    """ToW: Π (1 − |m(unlearned) − m(retrained)|) over forget, retain and test accuracy; 1 is a perfect match.

    ToW-MIA is the same with the MIA-efficacy instead of the forget accuracy.

    Args:
        unlearned: Metrics by name, as fractions.
        retrained: The same metrics of the retrained model.

    Raises:
        ValueError: The two do not have the same metrics, or none.

    >>> tug_of_war({"forget": 0.5, "retain": 1.0, "test": 1.0}, {"forget": 0.0, "retain": 1.0, "test": 1.0})
    0.5
    """
    _require_same_metrics(unlearned, retrained)
    return math.prod(1 - abs(unlearned[name] - retrained[name]) for name in unlearned)


def _require_same_metrics(unlearned: Mapping[str, float], retrained: Mapping[str, float]) -> None:
    if unlearned.keys() != retrained.keys() or not unlearned:
        raise ValueError(f"The models have different measures: {sorted(unlearned)} and {sorted(retrained)}.")


KLOM_BINS, KLOM_CLIP, KLOM_FLOOR = 20, 100.0, 1e-5


def klom(unlearned: Tensor, retrained: Tensor) -> Tensor:
    """KL of margins (KLoM): KL(unlearned ‖ retrained) between histograms of margins over models.

    Margins are clipped at ±100 and counted in 20 bins over their joint range, no bin below 1e-5. Report the 95th
    percentile over images.

    Args:
        unlearned: Margins of several unlearned models, (models, images).
        retrained: Those of several retrained models.

    Returns:
        (images,), in nats.

    >>> same = torch.tensor([[1.0], [2.0], [3.0]])
    >>> klom(same, same)
    tensor([0.])
    """
    margins = [values.double().clamp(-KLOM_CLIP, KLOM_CLIP) for values in (unlearned, retrained)]
    divergences = []
    for ours, theirs in zip(margins[0].T, margins[1].T, strict=True):
        low, high = float(torch.cat([ours, theirs]).min()), float(torch.cat([ours, theirs]).max())
        edges = (low, high) if high > low else (low - 0.5, low + 0.5)
        p, q = (torch.histc(m, KLOM_BINS, *edges) / len(m) for m in (ours, theirs))
        p, q = p.clamp(min=KLOM_FLOOR), q.clamp(min=KLOM_FLOOR)
        divergences.append((p * (p / q).log()).sum())
    return torch.stack(divergences).float()
