"""Recovery by a visual prompt [Bahng et al. 2022]: one pattern, added to every image, that brings a class back.

The weights stay as they are, but for the head's bias for the forgotten classes, which starts at the mean of the
remaining ones as in relearning: a low bias alone would hide a class from any pattern. A few forgotten
images with their labels, and as many retained ones, train the pattern.
What it recovers on other forgotten images was still in the network. A pattern can make any network predict a class it
never saw for some images, so the figure is compared with that of retrained models.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from famr.audit.attack_images import AttackImages, mixed_batches
from famr.audit.attack_steps import adam_steps, label_loss, require_finite, require_positive
from famr.audit.recovery import AttackHits
from famr.audit.relearning import level_bias
from famr.data import Images
from famr.data.loaders import Batch, evaluation_batches
from famr.data.splits import Splits
from famr.data.transforms import Preprocessing
from famr.engine.devices import deterministic, pick_device
from famr.engine.inference import predict_batches
from famr.errors import RequestError
from famr.metrics.predictions import Predictions
from famr.models import Classifier
from famr.models.labels import require_same_labels


@dataclass(frozen=True)
class PromptConfig:
    """Training of the pattern by Adam, with the network in evaluation mode.

    Attributes:
        images: Forgotten images of each class to learn from.
        steps: Number of steps.
        batch_size: Forgotten images in a step; as many retained ones come on top.
        learning_rate: Of Adam, for u in bound · tanh(u).
        bound: The most that the pattern changes a pixel, as a share of the range from black to white.
        level_bias: Set the head's bias for the forgotten classes to the mean of the remaining ones.
    """

    images: int = 20
    steps: int = 200
    batch_size: int = 20
    learning_rate: float = 0.1
    bound: float = 0.25
    level_bias: bool = True

    def __post_init__(self) -> None:
        settings = {name: getattr(self, name) for name in ("images", "steps", "batch_size", "learning_rate", "bound")}
        require_positive(settings, "PromptConfig")


@dataclass(frozen=True, eq=False)
class PromptRecovery:
    """What a prompt recovers from one model.

    Attributes:
        before: Hits of the model as it is, on images as they are.
        under: Hits on the same images with the prompt.
    """

    before: AttackHits
    under: AttackHits

    def to_json(self) -> dict[str, Any]:
        """Accuracies before and under the prompt."""
        return {"before": self.before.to_json(), "under": self.under.to_json()}


def recover_by_prompt(
    model: Classifier,
    splits: Splits,
    config: PromptConfig | None = None,
    *,
    seed: int = 0,
    device: str | None = None,
) -> PromptRecovery:
    """Train a prompt for a model, and evaluate it on forgotten images it did not learn from.

    Args:
        model: Is not changed.
        splits: Labelled forget images; with retained and test images where there are any.
        config: None: the defaults.
        seed: Of the drawn images and of the order of the batches.
        device: None: the best there is.

    Raises:
        RequestError: For forget images without classes.
        DataError: Where no forget image is left to measure accuracy on.
        NumericsError: Where the training diverges.
    """
    config = config or PromptConfig()
    torch_device = pick_device(device or "auto")
    if not splits.forget.labelled:
        raise RequestError(
            "A visual prompt needs the classes of the forget images.", fix="Put them into class folders."
        )
    require_same_labels(model, splits)
    task = AttackImages.draw(splits, config.images, seed)
    frozen = model.copy()
    frozen.module.to(torch_device).eval().requires_grad_(False)

    def hits(prompt: Tensor | None) -> AttackHits:
        forget = _predict_under(prompt, frozen, task.checked, torch_device)
        retain = None if task.test is None else _predict_under(prompt, frozen, task.test, torch_device)
        return AttackHits.of_predictions(forget, retain)

    with deterministic(seed):
        before = hits(None)
        if config.level_bias:
            level_bias(frozen, task.forgotten)
        return PromptRecovery(before, under=hits(train_prompt(frozen, task, config, torch_device)))


def train_prompt(frozen: Classifier, task: AttackImages, config: PromptConfig, device: torch.device) -> Tensor:
    """The pattern that brings forgotten images to their class and leaves retained ones in theirs.

    Args:
        frozen: The model on the device, without trainable weights.
        task: The images.
        config: Of the training.
        device: Where to compute.

    Returns:
        As added to normalised images, (channels, height, width).
    """
    preprocessing = frozen.require_preprocessing()
    largest = config.bound / torch.tensor(preprocessing.std, device=device)[:, None, None]  # in normalised units
    unbounded = torch.zeros(preprocessing.channels, *preprocessing.crop, device=device, requires_grad=True)

    of_labels = label_loss(frozen)

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        return of_labels(images + largest * torch.tanh(unbounded), labels)

    steps = adam_steps([unbounded], config.learning_rate, device)
    batches = mixed_batches(task, preprocessing, config.batch_size, device)
    for _step in range(config.steps):
        steps.take(loss, next(batches))
    return (largest * torch.tanh(unbounded)).detach()


def _predict_under(prompt: Tensor | None, frozen: Classifier, images: Images, device: torch.device) -> Predictions:
    """Predictions on images with the prompt; None: as they are."""
    preprocessing: Preprocessing = frozen.require_preprocessing()
    batches: Iterable[Batch] = evaluation_batches(images, preprocessing, device)(None)
    if prompt is not None:
        batches = _prompted(batches, prompt)
    return require_finite(predict_batches(frozen, batches, device), "visual prompt")


def _prompted(batches: Iterable[Batch], prompt: Tensor) -> Iterator[Batch]:
    for batch in batches:
        yield batch._replace(images=batch.images + prompt)
