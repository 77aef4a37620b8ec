"""The interface of targets, and the inputs that a target is built from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self

import torch
from torch import Tensor

from famr.data import Images
from famr.data.loaders import Batches
from famr.engine.base import Session
from famr.errors import RequestError
from famr.metrics.forgetting import correct, entropy
from famr.metrics.predictions import Predictions
from famr.models.activations import LayerOutput
from famr.targets.demotion import Demotion
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
        """Compute the statistics.

        Args:
            predictions: The original's predictions on held-out images.
        """
        entropies = entropy(predictions.logits)
        if not predictions.labelled:
            return cls(float(entropies.mean()), None, None)
        wrong = entropies[correct(predictions.logits, predictions.targets) == 0]
        return cls(
            float(entropies.mean()),
            float(wrong.mean()) if len(wrong) else None,
            margins(predictions.logits, predictions.targets),
        )


@dataclass(frozen=True, eq=False)
class ProxyPredictions:
    """What models that never saw the forget images predict on them.

    Attributes:
        logits: Each row by a proxy that never saw the image, (images, classes).
        known: The classes that this proxy was trained on, (images, classes).
        temperature: τ that makes up for its short training, (images,).
    """

    logits: Tensor
    known: Tensor
    temperature: Tensor


@dataclass(frozen=True, eq=False)
class TargetInputs:
    """Everything that a target may read. Predictions are computed when a target first reads them.

    Attributes:
        session: The network, at θ₀.
        forget_batches: Passes over the forget set.
        held_out_batches: Passes over held-out images; None without them.
        sketched: The statistics of held-out images that a sketch has; None without a sketch.
        retained: Retained images; None without them.
        style: Output of the style layer; None where no style is forgotten.
        forgotten: Indices of the classes that are forgotten whole.
        forgets_classes: Whether the request names whole classes and nothing else.
        temperature: τ as given by the user; None: to be calibrated.
        overshoot: κ: how much further than the target to aim.
        proxy: Predictions of proxies; None where the target needs none.
    """

    session: Session
    forget_batches: Batches
    held_out_batches: Batches | None
    sketched: HeldOutStatistics | None
    retained: Images | None
    style: LayerOutput | None
    forgotten: tuple[int, ...]
    forgets_classes: bool
    temperature: float | None
    overshoot: float
    proxy: ProxyPredictions | None = None

    @cached_property
    def forget(self) -> Predictions:
        """The original's predictions on the forget set."""
        return self.session.predict(self.forget_batches)

    @cached_property
    def held_out(self) -> HeldOutStatistics | None:
        """The original's confidence on held-out images; None where neither images nor a sketch are available."""
        if self.held_out_batches is None:
            return self.sketched
        return HeldOutStatistics.of(self.session.predict(self.held_out_batches))

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

    def require_held_out(self) -> HeldOutStatistics:
        """The original's confidence on held-out images, for a target that calibrates τ on it.

        Raises:
            RequestError: There are neither held-out images nor a sketch.
        """
        if self.held_out is None:
            raise RequestError(
                "Without held-out images or a sketch the temperature of the target cannot be chosen.",
                where="temperature",
                fix="Give one, e.g. 0.6.",
            )
        return self.held_out


@dataclass(frozen=True, eq=False)
class Target(ABC):
    """q: the distribution that the model is to predict on the forget set.

    A subclass defines `build`, and sets the class attributes below for the settings that it takes.

    Attributes:
        probabilities: q, (classes,) where all images share it, else (images, classes).
        temperature: τ with which it was built; None for a target without one.
        demotion: What forgotten classes are pushed below; None: the lowest quarter of the remaining classes.
        has_temperature: Whether the target takes a temperature; where the user gives none, `build` chooses it.
        default_demotion: γ where the user gives none, for a target of classes that are forgotten whole; None for a
            target that takes no demotion.
        needs_proxy: Whether it reads the predictions of proxies.
    """

    probabilities: Tensor
    temperature: float | None = None
    demotion: Demotion | None = None

    has_temperature: ClassVar[bool] = False
    default_demotion: ClassVar[float | None] = None
    needs_proxy: ClassVar[bool] = False

    @classmethod
    @abstractmethod
    def build(cls, inputs: TargetInputs) -> Self:
        """Build the target at θ₀.

        Args:
            inputs: The network, its predictions and the request.

        Raises:
            RequestError: The target does not serve this request, or something that it needs is not available.
        """

    def true_class_margins(self, labels: Tensor) -> Tensor:
        """Log-odds of the true class under q, one an image, and finite where q is 0.

        Args:
            labels: Class indices of the forget set, (images,).
        """
        q = self.probabilities.expand(len(labels), -1).cpu()
        return margins(q.clamp(min=torch.finfo(q.dtype).tiny).log(), labels)

    @property
    def chance(self) -> float:
        """The accuracy on forgotten classes of a model that predicts q."""
        return 0.0
