"""What a target is made from, and what it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from famr.errors import RequestError
from famr.metrics.forgetting import correct, entropy
from famr.metrics.predictions import Predictions
from famr.targets.margins import margins


@dataclass(frozen=True, eq=False)
class HeldOutStatistics:
    """How confident a model is on images it was not trained on.

    Attributes:
        entropy: Mean entropy of its predictions, in nats.
        entropy_when_wrong: The same over the images it misclassifies; None where there are none, or no labels.
        margins: Log-odds of the true class, one an image; None without labels.
    """

    entropy: float
    entropy_when_wrong: float | None
    margins: Tensor | None

    @classmethod
    def of(cls, predictions: Predictions) -> HeldOutStatistics:
        """Take the statistics.

        Args:
            predictions: Of the original on held-out images.
        """
        each = entropy(predictions.logits)
        if not predictions.labelled:
            return cls(float(each.mean()), None, None)
        wrong = each[correct(predictions.logits, predictions.targets) == 0]
        return cls(
            float(each.mean()),
            float(wrong.mean()) if len(wrong) else None,
            margins(predictions.logits, predictions.targets),
        )


class ProbeFeatures(NamedTuple):
    """Mid-network features, averaged over positions."""

    retained: Tensor  # (images, channels)
    retained_labels: Tensor  # (images,)
    forget: Tensor  # (images, channels)


@dataclass(frozen=True, eq=False)
class TargetInputs:
    """Everything a target may read.

    Attributes:
        forget: The original's predictions on the forget set.
        held_out: Its confidence on held-out images; None where neither images nor a sketch are available.
        forgotten: Indices of the classes that are forgotten whole.
        forgets_classes: Whether the request names whole classes and nothing else.
        temperature: τ as given by the user; None: to be calibrated on the held-out images.
        overshoot: κ: how much further than the target to aim.
        features: Reads the style layer's features of retained and forget images; None where there is no style layer or
            there are no labelled retained images.
    """

    forget: Predictions
    held_out: HeldOutStatistics | None
    forgotten: tuple[int, ...]
    forgets_classes: bool
    temperature: float | None
    overshoot: float
    features: Callable[[], ProbeFeatures] | None = None

    @property
    def classes(self) -> int:
        """C, the number of outputs."""
        return self.forget.logits.shape[-1]

    def require_samples(self, name: str) -> None:
        """Refuse a target that is for samples where whole classes are forgotten.

        Args:
            name: The target.

        Raises:
            RequestError: The request forgets whole classes.
        """
        if self.forgets_classes:
            raise RequestError(
                f"The {name} target is for samples: with it the model would still know the forgotten classes.",
                where="target",
                fix="Use the masked target for classes and concepts.",
            )


class Target(NamedTuple):
    """q: what the model is to predict on the forget set."""

    probabilities: Tensor  # (classes,), or (images, classes) for one distribution an image
    temperature: float | None = None
    """τ with which it was made; None for a target without one."""
