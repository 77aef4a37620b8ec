"""Fine-tuning on retained images alone: does what was forgotten come back by itself?

Unlearning that only moved a decision boundary is undone by a few steps that never see a forgotten image, as benign
fine-tuning of a deployed model does. A model that never learned the class has nothing to come back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from famr.audit.attack_images import endless_batches
from famr.audit.attack_steps import adam_steps, label_loss, require_finite, require_positive
from famr.data import Images
from famr.data.loaders import order
from famr.engine.devices import deterministic, pick_device
from famr.engine.inference import predict
from famr.errors import RequestError
from famr.metrics.forgetting import correct, cross_entropy
from famr.metrics.predictions import Predictions
from famr.models import Classifier
from famr.models.layers import trainable


@dataclass(frozen=True)
class RetainedTuningConfig:
    """Fine-tuning by Adam in evaluation mode (no dropout, BatchNorm statistics fixed).

    Attributes:
        images: The most retained images to draw from.
        steps: Number of steps.
        batch_size: Images of a step.
        learning_rate: Of Adam.
    """

    images: int = 2000
    steps: int = 100
    batch_size: int = 64
    learning_rate: float = 1e-4

    def __post_init__(self) -> None:
        settings = {name: getattr(self, name) for name in ("images", "steps", "batch_size", "learning_rate")}
        require_positive(settings, "RetainedTuningConfig")


@dataclass(frozen=True, eq=False)
class RetainedTuning:
    """A model's predictions on forget images after fine-tuning on retained ones.

    Attributes:
        forget: On the forget images.
    """

    forget: Predictions

    def to_json(self) -> dict[str, Any]:
        """Forget accuracy and the mean probability of the true class, and the number of images."""
        logits, targets = self.forget.logits, self.forget.targets
        return {
            "forget_accuracy": float(correct(logits, targets).double().mean()),
            "true_class_probability": float((-cross_entropy(logits, targets)).exp().double().mean()),
            "images": len(targets),
        }


def tune_on_retained(
    model: Classifier,
    forget: Images,
    retain: Images,
    config: RetainedTuningConfig | None = None,
    *,
    seed: int = 0,
    device: str | None = None,
) -> RetainedTuning:
    """Fine-tune a copy on retained images alone, then predict the forget images.

    Args:
        model: Is not changed.
        forget: Images to predict; none is learned from.
        retain: Labelled images to learn from.
        config: None: the defaults.
        seed: Of the drawn images and of the order of the batches.
        device: None: the best there is.

    Raises:
        RequestError: For images without classes.
        NumericsError: Where the fine-tuning diverges.
    """
    config = config or RetainedTuningConfig()
    torch_device = pick_device(device or "auto")
    if not (forget.labelled and retain.labelled):
        raise RequestError("Fine-tuning on retained images needs their classes, and those of the forget images.")
    student = model.copy()
    student.module.to(torch_device).eval()
    images = retain.take(order(len(retain), seed)[: config.images])
    steps, loss = adam_steps(trainable(student.module), config.learning_rate, torch_device), label_loss(student)
    with deterministic(seed):
        batches = endless_batches(images, student.require_preprocessing(), config.batch_size, torch_device, seed)
        for _step in range(config.steps):
            steps.take(loss, next(batches))
        found = predict(student, forget, torch_device)
    return RetainedTuning(require_finite(found, f"fine-tuning on retained images, step {config.steps}"))
