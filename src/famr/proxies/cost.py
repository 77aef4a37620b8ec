"""What a proxy costs, said before it is trained: floating-point operations, and their share of a retraining's.

A forward pass of an image counts 1, a backward pass 2. Retraining makes E epochs over n images, 3·E·n. A proxy computes
its early layers once for each image, (1 − s)·n, and trains a share s of the layers for e epochs, 3·s·e·n.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.utils.flop_counter import FlopCounterMode

from famr.models import Classifier
from famr.models.classifier import eval_mode
from famr.models.layers import blank_image
from famr.proxies.recipe import ProxyRecipe

RATES = {"cpu": 5e10, "cuda": 5e13}
"""Floating-point operations a second that a training reaches, about: two cores of a processor; an H200 with a small
network in bf16, for which a tenth of its peak is usual. Others count as a CPU."""
AFFORDABLE = 300.0
"""Seconds up to which a proxy is trained without being asked for."""


@dataclass(frozen=True)
class ProxyPlan:
    """Where predictions of a proxy come from, and what they cost.

    Attributes:
        source: In words.
        operations: Floating-point operations of the training.
        share: These, as a share of those of a retraining.
        late_share: Share of the layers that the proxy trains.
    """

    source: str
    operations: float
    share: float
    late_share: float

    def seconds(self, device_type: str) -> float:
        """About how long it takes.

        Args:
            device_type: Such as cpu or cuda.
        """
        return self.operations / RATES.get(device_type, RATES["cpu"])

    def affordable(self, device_type: str) -> bool:
        """Whether a proxy is trained without being asked for.

        Args:
            device_type: Such as cpu or cuda.
        """
        return self.seconds(device_type) <= AFFORDABLE

    def describe(self, device_type: str) -> str:
        """Source and cost in words.

        Args:
            device_type: Such as cpu or cuda.

        >>> ProxyPlan("a proxy trained now", 6e12, 0.145, 0.5).describe("cpu")
        'a proxy trained now, about 14 % of a retraining, 2 min'
        >>> ProxyPlan("10 proxies of the sketch", 0.0, 0.0, 0.5).describe("cpu")
        '10 proxies of the sketch, no training'
        """
        if not self.operations:
            return f"{self.source}, no training"
        cost = f"{100 * self.share:.0f} % of" if self.share < 1 else f"{self.share:.1f} times"
        return f"{self.source}, about {cost} a retraining, {in_time(self.seconds(device_type))}"


def plan_proxy(original: Classifier, recipe: ProxyRecipe, images: int) -> ProxyPlan:
    """The cost of a proxy that is trained for one request.

    Args:
        original: The model that is to forget.
        recipe: How the proxy is trained.
        images: Images that it may see.
    """
    passes = proxy_passes(recipe.short_training.epochs, recipe.late_share)
    share = passes / (3 * recipe.training.epochs)
    return ProxyPlan("a proxy trained now", forward_operations(original) * passes * images, share, recipe.late_share)


def plan_proxies(original: Classifier, recipe: ProxyRecipe, images: int, groups: int) -> ProxyPlan:
    """The cost of proxies that are taken once, each of which sees all but two of the groups' shares of the images.

    Args:
        original: A trained model.
        recipe: How it was trained.
        images: Training images.
        groups: How many proxies.
    """
    early, late = 1 - recipe.late_share, 3 * recipe.late_share * recipe.short_training.epochs
    passes = early + late * (groups - 2)
    share = passes / (3 * recipe.training.epochs)
    return ProxyPlan(f"{groups} proxies", forward_operations(original) * passes * images, share, recipe.late_share)


def proxy_passes(epochs: int, late_share: float) -> float:
    """Passes an image of a proxy's training: (1 − s) + 3·s·e.

    Args:
        epochs: e.
        late_share: s.

    >>> proxy_passes(2, 0.5)
    3.5
    """
    return (1 - late_share) + 3 * late_share * epochs


def forward_operations(model: Classifier) -> float:
    """Floating-point operations of a forward pass of one image.

    Args:
        model: Any classifier with preprocessing; one without counts 0.
    """
    if model.preprocessing is None:
        return 0.0
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), eval_mode(model.module), counter:
        model.logits(blank_image(model))
    return float(counter.get_total_flops())


def in_time(seconds: float) -> str:
    """A duration in words.

    Args:
        seconds: Its length.

    >>> [in_time(seconds) for seconds in (0.2, 40, 150, 9000)]
    ['1 s', '40 s', '2 min', '2.5 h']
    """
    if seconds < 100:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
