"""A measured value with a 95 % interval by the percentile bootstrap over images [Efron & Tibshirani 1993].

Where an attack was trained several times, on draws of its own, the draws are resampled as well as the images
[Owen 2007]: an attack that calls all images members in one draw and none in the next is not known to 1 %, however many
images there are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from famr.audit.prediction_bound import ReferenceSpread

CONFIDENCE = 0.95
"""Level of every interval of an audit."""
RESAMPLES = 2000
"""Bootstrap samples of a mean over images."""
BATCH = 200
"""Bootstrap samples in memory at once."""


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval, or the reason why there is none.

    Attributes:
        value: The point estimate; None where it could not be measured.
        low: Lower end of the interval; None where the value has no interval.
        high: Upper end of the interval; None where the value has no interval.
        why_not: The reason for a missing value; None otherwise.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    why_not: str | None = None

    @classmethod
    def not_available(cls, reason: str) -> Estimate:
        """An estimate without a value.

        Args:
            reason: Why there is no value, shown to the user.
        """
        return cls(None, why_not=reason)

    def ends(self) -> tuple[float, float] | None:
        """The interval; the value twice where it has no interval, None where there is no value."""
        if self.value is None:
            return None
        return self.value if self.low is None else self.low, self.value if self.high is None else self.high


@dataclass(frozen=True)
class Estimates:
    """One quantity of every model of an audit.

    Attributes:
        by_model: Its estimate by the name of the model: unlearned, original, retrained.
        among_references: Its estimate for each reference model against the remaining ones; empty where the quantity is
            no distance to reference models, or where there are fewer than two of them.
        spread: How the reference models differ, for the bound of one more of them: of those that have a value, in their
            order. None: by the values themselves, of which a large one is bad.
    """

    by_model: Mapping[str, Estimate]
    among_references: Sequence[Estimate] = ()
    spread: ReferenceSpread | None = None


def bootstrap_interval(samples: Sequence[Tensor], statistic: Callable[..., Any], seed: int) -> tuple[float, float]:
    """95 % percentile interval of a statistic of independent samples, each resampled with replacement.

    Args:
        samples: One tensor of values for each sample, (n_i,).
        statistic: `statistic(*samples, axis)`, vectorised over the leading axes, as `scipy.stats.bootstrap` takes it.
        seed: Of the resampling.

    Returns:
        The 2.5th and the 97.5th percentile of the statistic over `RESAMPLES` bootstrap samples.
    """
    from scipy.stats import bootstrap

    # scipy refuses a sample of one; resampling two copies of the value gives the same value every time
    values = [(sample if len(sample) > 1 else sample.repeat(2)).double().cpu().numpy() for sample in samples]
    interval = bootstrap(
        values,
        statistic,
        n_resamples=RESAMPLES,
        batch=BATCH,
        vectorized=True,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return float(interval.low), float(interval.high)


def mean_interval(values: Tensor, seed: int) -> tuple[float, float]:
    """95 % percentile interval of a mean over images, or over draws and images.

    Args:
        values: (images,), or (draws, images); draws and images are then resampled independently.
        seed: Of the resampling.
    """

    def mean(*resampled: Any, axis: int) -> Any:  # noqa: ARG001 - scipy gives the last one
        return _resampled_mean(values, resampled)

    return bootstrap_interval(_to_resample(values), mean, seed)


def _to_resample(values: Tensor) -> list[Tensor]:
    """The images' values; for draws and images the indices of both."""
    return [values] if values.dim() == 1 else [torch.arange(count) for count in values.shape]


def _resampled_mean(values: Tensor, resampled: Sequence[Any]) -> Any:
    """The mean of what `_to_resample` gave, resampled along the last axis."""
    if values.dim() == 1:
        return resampled[0].mean(axis=-1)
    draws, images = (indices.astype(int) for indices in resampled)
    return values.double().cpu().numpy()[draws[..., :, None], images[..., None, :]].mean(axis=(-2, -1))


def mean_estimate(values: Tensor, seed: int = 0) -> Estimate:
    """The mean over images.

    Args:
        values: One value for each image, (images,), or one for each draw of an attack and image, (draws, images).
        seed: Of the bootstrap.

    >>> mean_estimate(torch.ones(10))
    Estimate(value=1.0, low=1.0, high=1.0, why_not=None)
    """
    return Estimate(float(values.double().mean()), *mean_interval(values, seed))


def gap_estimate(differences: Tensor, seed: int = 0) -> Estimate:
    """|mean difference|; the interval starts at 0 where that of the mean difference contains 0.

    Args:
        differences: Model under audit minus reference models, one value for each image, (images,), or one for each draw
            of an attack and image, (draws, images).
        seed: Of the bootstrap.

    >>> gap_estimate(torch.tensor([-0.5, -0.5]))
    Estimate(value=0.5, low=0.5, high=0.5, why_not=None)
    """
    return _folded(float(differences.double().mean()), *mean_interval(differences, seed))


def gap_of_replicates(difference: float, replicates: Tensor) -> Estimate:
    """|difference|, by bootstrap samples that were drawn elsewhere; the interval is widened to contain the value.

    Args:
        difference: Model under audit minus reference models.
        replicates: The same of each bootstrap sample, (samples,).

    >>> gap_of_replicates(-0.5, torch.tensor([-0.75, -0.5, -0.25]))
    Estimate(value=0.5, low=0.2625, high=0.7375, why_not=None)
    """
    miss = (1 - CONFIDENCE) / 2
    low, high = replicates.double().quantile(torch.tensor([miss, 1 - miss], dtype=torch.double)).tolist()
    return _folded(difference, min(low, difference), max(high, difference))


def _folded(value: float, low: float, high: float) -> Estimate:
    """The absolute value; its interval starts at 0 where that of the value contains 0."""
    nearest = 0.0 if low <= 0 <= high else min(abs(low), abs(high))
    return Estimate(abs(value), nearest, max(abs(low), abs(high)))


def mean_gap_estimate(differences: Sequence[Tensor], seed: int = 0) -> Estimate:
    """(1/k) Σᵢ |mean differenceᵢ|, as in Avg. Gap [Fan et al. 2024].

    The absolute value biases a bootstrap sample upwards where a gap is small, so the interval is widened to contain the
    value.

    Args:
        differences: For each of k measures, one value for each of its images, (imagesᵢ,), or (drawsᵢ, imagesᵢ).
        seed: Of the bootstrap; the measures are resampled independently.

    >>> mean_gap_estimate([torch.tensor([-0.5, -0.5]), torch.tensor([0.25])])
    Estimate(value=0.375, low=0.375, high=0.375, why_not=None)
    """

    samples = [_to_resample(each) for each in differences]

    def mean_gap(*resampled: Any, axis: int) -> Any:  # noqa: ARG001 - scipy gives the last one
        remaining = iter(resampled)
        taken = [list(islice(remaining, len(own))) for own in samples]
        means = [_resampled_mean(each, own) for each, own in zip(differences, taken, strict=True)]
        return sum(np.abs(mean) for mean in means) / len(means)

    value = sum(abs(float(each.double().mean())) for each in differences) / len(differences)
    low, high = bootstrap_interval([sample for own in samples for sample in own], mean_gap, seed)
    return Estimate(value, min(low, value), max(high, value))
