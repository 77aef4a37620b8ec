"""Is each reference model one of its own? Copies of another model of the audit are refused, disguised ones too.

A bit-identical copy has the digest of its model. A copy with its units in another order has another digest and the same
predictions. A copy with noise differs in both, but less than two trainings do; and several copies with noise of their
own scatter around the model that they were made of, where models trained alike scatter around none of them.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import combinations

import torch
from torch import Tensor

from famr.audit.measurements import ModelMeasurements
from famr.audit.names import is_reference
from famr.errors import RequestError
from famr.metrics.retraining import js_divergence
from famr.models import Classifier

OWN_MODELS = "Give models that were trained without the forget set, each from a seed of its own."
COPY = 0.2
"""A model whose predictions are nearer to another one's than this share of what two references differ by is a copy."""
SAME = 1e-6
"""JS in nats below which predictions are equal but for rounding."""
FEWEST_AROUND = 4
"""References around a model below which it may be in their middle by chance; with so few no audit passes anyway."""
CENTRE = 0.3
"""`centrality` below which a model is the one that others were made of: k copies have (k − 1)/k², at most ¼."""


def require_own_models(models: Mapping[str, Classifier], references: Sequence[str]) -> dict[str, str]:
    """Refuse reference models whose weights are those of another model of the audit.

    Args:
        models: All models of the audit by name.
        references: Names of those that should have been trained on their own.

    Returns:
        SHA-256 of the weights by name.

    Raises:
        RequestError: For a model that is given twice.
    """
    digests = {name: model.digest() for name, model in models.items()}
    for name in references:
        if twin := next((other for other in models if other != name and digests[other] == digests[name]), None):
            raise RequestError(
                f"The {name} model is the {twin} one: the same weights.", where=models[name].spec, fix=OWN_MODELS
            )
    return digests


def require_own_predictions(
    measured: Mapping[str, ModelMeasurements], trained_alone: Sequence[str], others: Sequence[str]
) -> None:
    """Refuse reference models that predict what another model of the audit predicts on held-out images.

    The median JS divergence of two references is the scale.

    Args:
        measured: Predictions of all models by name.
        trained_alone: Names of those that should have been trained on their own: references, and the never-saw model.
        others: Names of the models under audit and of the original.

    Raises:
        RequestError: For a copy.
    """

    def distance(first: str, second: str) -> float:
        return float(js_divergence(measured[first].test.logits, measured[second].test.logits).mean())

    pairs = {pair: distance(*pair) for pair in combinations(trained_alone, 2)}
    usual = [value for pair, value in pairs.items() if all(map(is_reference, pair))]
    scale = statistics.median(usual) if usual else 0.0
    pairs |= {(name, other): distance(name, other) for name in trained_alone for other in others}
    for (name, other), value in pairs.items():
        if value < max(SAME, COPY * scale):
            raise RequestError(
                f"The {name} model is a copy of the {other} one: on held-out images they hardly differ.",
                where=f"JS {value:.2g}, where two references differ by {scale:.2g}",
                fix=OWN_MODELS,
            )
    references = [name for name in trained_alone if is_reference(name)]
    for name in (*others, *references):
        around = [measured[each].test.logits for each in references if each != name]
        if len(around) < FEWEST_AROUND:
            continue
        if (found := robust_centrality(measured[name].test.logits, around)) < CENTRE:
            raise RequestError(
                f"The retrained models are copies of the {name} one with noise: their predictions scatter around its.",
                where=f"its distance to their mean is {found:.2g} of what it is for them; below {CENTRE} is no chance",
                fix=OWN_MODELS,
            )


def robust_centrality(logits: Tensor, around: Sequence[Tensor]) -> float:
    """The largest `centrality` with any one of the others left out.

    A training that failed is far from all others, and next to it every model is near their mean.

    Args:
        logits: Of the model, (images, classes).
        around: Of at least three others.
    """
    return max(centrality(logits, [*around[:index], *around[index + 1 :]]) for index in range(len(around)))


def centrality(logits: Tensor, around: Sequence[Tensor]) -> float:
    """‖p − mean of k others‖² over the mean of ‖pᵢ − mean of the other k − 1‖²; means over images.

    For a model that was trained like the others it is near 1, as all of them differ from their common mean alike. For
    the one that k others were made of by adding noise it is (1/k) / (1 + 1/(k − 1)) = (k − 1)/k².

    Args:
        logits: Of the model, (images, classes).
        around: Of at least two others.

    >>> first, second = torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 0.0]])
    >>> round(centrality(torch.tensor([[0.0, 0.0]]), [first, second]), 6), round(centrality(first, [first, second]), 6)
    (0.0, 0.25)
    """
    own = torch.softmax(logits.double(), dim=-1)
    each = torch.stack([torch.softmax(other.double(), dim=-1) for other in around])
    mean = each.mean(dim=0)
    to_mean = (own - mean).square().sum(dim=-1).mean()
    # p_i − mean of the others = (p_i − mean of all) · k / (k − 1)
    to_others = ((each - mean) * len(each) / (len(each) - 1)).square().sum(dim=-1).mean()
    return float(to_mean / to_others.clamp(min=torch.finfo(torch.double).tiny))
