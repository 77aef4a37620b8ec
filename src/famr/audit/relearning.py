"""Relearning: how soon is a forgotten class back? [Golatkar et al. 2020]

Copies are fine-tuned on a few forgotten images, and their accuracy on other forgotten images is followed over a fixed
number of steps. The figure is the area under this curve: the mean accuracy over all steps as a share of the original's
accuracy on the same images. Every model has one, also a model that never comes back. A perfect result is the area of a
retrained model: more means that the class was hidden, not forgotten; less, that it was made harder to learn. The number
of steps until 95 % of the original's accuracy is stated as well; for a model that takes more it is only known to be
"more than" all steps.

Two choices make the curves comparable. Where there are retained images, each step sees as many of them as forgotten
ones: otherwise a network that predicts the forgotten class for everything would count as having learned it. And the
head's bias for the forgotten classes starts at the mean of the remaining ones, in every model alike: a bias of −20
alone would take longer to climb than a class takes to be learned.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from famr.audit.attack_images import AttackImages, mixed_batches
from famr.audit.attack_steps import adam_steps, label_loss, require_finite, require_positive
from famr.data.loaders import EVALUATION_BATCH, image_batches
from famr.data.splits import Splits
from famr.engine.devices import deterministic, pick_device
from famr.engine.inference import accuracy_on_images, predict, predict_batches
from famr.errors import RequestError
from famr.metrics.forgetting import correct
from famr.metrics.predictions import Predictions
from famr.models import Classifier
from famr.models.labels import require_same_labels
from famr.models.layers import head_of, trainable

RECOVERED_PERCENT = 95
"""A class counts as recovered at this part of the original's hits; whole percents, so that counts are compared."""
SPACING = 5
"""Accuracy is measured after s steps and next after ⌊s/5⌋ more, at least one: the curve is steep in the beginning."""


@dataclass(frozen=True)
class RelearningConfig:
    """Fine-tuning by Adam in evaluation mode (no dropout, BatchNorm statistics fixed).

    Attributes:
        images: Forgotten images of each class to learn from.
        steps: Number of steps; all of them are taken.
        batch_size: Forgotten images in a step; as many retained ones come on top.
        learning_rate: Of Adam.
        level_bias: Start the head's bias for the forgotten classes at the mean of the remaining ones.
        every_step: Measure accuracy after every step, not only after those of `measured_steps`.
    """

    images: int = 20
    steps: int = 100
    batch_size: int = 64
    learning_rate: float = 1e-4
    level_bias: bool = True
    every_step: bool = False

    def __post_init__(self) -> None:
        settings = {name: getattr(self, name) for name in ("images", "steps", "batch_size", "learning_rate")}
        require_positive(settings, "RelearningConfig")

    @property
    def measured(self) -> tuple[int, ...]:
        """The numbers of steps after which accuracy is measured."""
        return tuple(range(self.steps + 1)) if self.every_step else measured_steps(self.steps)


def measured_steps(steps: int) -> tuple[int, ...]:
    """Numbers of steps, each at most a fifth above the one before.

    Args:
        steps: The last of them.

    >>> measured_steps(30)
    (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 19, 22, 26, 30)
    """
    numbers = [0]
    while numbers[-1] < steps:
        numbers.append(min(steps, numbers[-1] + max(1, numbers[-1] // SPACING)))
    return tuple(numbers)


def mean_over_steps(hits: Tensor, measured: Sequence[int]) -> Tensor:
    """Area under each image's curve by the trapezoidal rule, divided by the number of steps.

    Args:
        hits: 1 where the image was classified correctly, (measurements, images).
        measured: The number of steps before each measurement, from 0.

    Returns:
        (images,) as doubles, from 0 to 1.

    >>> mean_over_steps(torch.tensor([[0.0, 1.0], [0.0, 1.0], [1.0, 1.0]]), (0, 1, 3))
    tensor([0.3333, 1.0000], dtype=torch.float64)
    """
    return torch.trapezoid(hits.double(), torch.tensor(measured, dtype=torch.float64), dim=0) / measured[-1]


@dataclass(frozen=True)
class RelearningRun:
    """One model's relearning from one draw of images.

    Attributes:
        seed: Of the draw and of the order of the batches.
        images: Forgotten images that it learned from.
        checked: Other forgotten images on which accuracy was measured.
        original_hits: How many of these the original classifies correctly.
        measured: The number of steps before each measurement.
        hits: How many of the checked images were classified correctly in each measurement.
        by_image: Share of the steps in which each checked image was classified correctly, (checked,).
        retain_accuracy: At the end, on held-out retained images; None without such images.
    """

    seed: int
    images: int
    checked: int
    original_hits: int
    measured: tuple[int, ...]
    hits: tuple[int, ...]
    by_image: tuple[float, ...]
    retain_accuracy: float | None

    @property
    def curve(self) -> tuple[float, ...]:
        """Accuracy on the checked images in each measurement."""
        return tuple(hits / self.checked for hits in self.hits)

    @property
    def area(self) -> float | None:
        """Mean accuracy over all steps as a share of the original's; None where the original has no hit."""
        return sum(self.by_image) / self.original_hits if self.original_hits else None

    @property
    def steps(self) -> int | None:
        """Steps until 95 % of the original's hits, up to the next measurement; None where they were not reached."""
        reached = (step for step, hits in zip(self.measured, self.hits, strict=True) if self._recovered(hits))
        return next(reached, None)

    def _recovered(self, hits: int) -> bool:
        """Whether hits are 95 % of the original's: in whole numbers, as 95 of 100 is below 0.95 in single precision."""
        return 100 * hits >= RECOVERED_PERCENT * self.original_hits

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "seed": self.seed,
            "images": self.images,
            "checked": self.checked,
            "original_hits": self.original_hits,
            "measured": list(self.measured),
            "hits": list(self.hits),
            "curve": list(self.curve),
            "area": self.area,
            "steps": self.steps,
            "retain_accuracy": self.retain_accuracy,
        }


def median_steps(runs: Sequence[RelearningRun]) -> float | None:
    """The median number of steps; None where half of the runs or more did not recover: it is more than all steps.

    Args:
        runs: Of one model, one for each seed.

    >>> runs = [RelearningRun(0, 5, 9, 9, (0, 1, 2), hits, (), None) for hits in ((0, 9, 9), (0, 5, 9), (0, 1, 2))]
    >>> [run.steps for run in runs], median_steps(runs), median_steps(runs[1:])
    ([1, 2, None], 2.0, None)
    """
    middle = statistics.median(math.inf if run.steps is None else run.steps for run in runs)
    return None if math.isinf(middle) else float(middle)


def relearning_json(runs: Sequence[RelearningRun]) -> dict[str, Any]:
    """The runs of one model as plain values, with their areas and the median of their steps.

    Args:
        runs: One for each seed.
    """
    middle = median_steps(runs)
    return {
        "areas": [run.area for run in runs],
        "median_steps": f"more than {runs[0].measured[-1]}" if middle is None else middle,
        "not_recovered": sum(run.steps is None for run in runs),
        "runs": [run.to_json() for run in runs],
    }


def images_needed(by_images: Mapping[int, Sequence[RelearningRun]]) -> int | None:
    """The fewest forgotten images from which most seeds recover; None where none are enough.

    Args:
        by_images: Runs by the number of images they learned from.
    """
    return next((count for count in sorted(by_images) if median_steps(by_images[count]) is not None), None)


def relearning(
    models: Mapping[str, Classifier],
    splits: Splits,
    original: Classifier,
    config: RelearningConfig | None = None,
    *,
    seeds: Sequence[int] = (0, 1, 2),
    device: str | None = None,
) -> dict[str, tuple[RelearningRun, ...]]:
    """Let copies of each model relearn, from the same images for each seed.

    Args:
        models: By name; they are not changed.
        splits: Labelled forget images; with retained and test images where there are any.
        original: Its accuracy is what the areas and the steps are measured by.
        config: None: the defaults.
        seeds: One run of each model for each.
        device: None: the best there is.

    Returns:
        By name, one run for each seed.

    Raises:
        RequestError: For forget images without classes.
        DataError: Where no forget image is left to measure accuracy on.
        NumericsError: Where the fine-tuning diverges.
    """
    config = config or RelearningConfig()
    torch_device = pick_device(device or "auto")
    if not splits.forget.labelled:
        raise RequestError("Relearning needs the classes of the forget images.", fix="Put them into class folders.")
    for model in (original, *models.values()):
        require_same_labels(model, splits)
    runs: dict[str, list[RelearningRun]] = {name: [] for name in models}
    for seed in seeds:
        task = AttackImages.draw(splits, config.images, seed)
        original_hits = int(_hits(predict(original, task.checked, torch_device)).sum())
        for name, model in models.items():
            runs[name].append(relearn(model, task, original_hits, config, torch_device))
    return {name: tuple(of_model) for name, of_model in runs.items()}


def relearn(
    model: Classifier, task: AttackImages, original_hits: int, config: RelearningConfig, device: torch.device
) -> RelearningRun:
    """Fine-tune a copy, and follow its accuracy on the checked images over all steps.

    Args:
        model: Is not changed.
        task: The images.
        original_hits: How many checked images the original classifies correctly.
        config: Of the fine-tuning.
        device: Where to compute.

    Raises:
        NumericsError: Where it diverges.
    """
    student = model.copy()
    student.module.to(device).eval()
    if config.level_bias:
        level_bias(student, task.forgotten)
    with deterministic(task.seed):
        hits = torch.stack(list(_hits_over_steps(student, task, config, device)))
    return RelearningRun(
        seed=task.seed,
        images=len(task.learned),
        checked=len(task.checked),
        original_hits=original_hits,
        measured=config.measured,
        hits=tuple(hits.sum(dim=1).int().tolist()),
        by_image=tuple(mean_over_steps(hits, config.measured).tolist()),
        retain_accuracy=None if task.test is None else accuracy_on_images(student, task.test, device),
    )


@torch.no_grad()
def level_bias(model: Classifier, classes: Collection[int]) -> None:
    """Set the head's bias for some classes to the mean of the remaining ones, in place.

    Args:
        model: Is changed; a head without bias stays as it is.
        classes: Indices.
    """
    bias = head_of(model).bias if classes else None
    if bias is not None and len(classes) < len(bias):
        remaining = [row for row in range(len(bias)) if row not in classes]
        bias[list(classes)] = bias[remaining].mean()


def _hits_over_steps(
    student: Classifier, task: AttackImages, config: RelearningConfig, device: torch.device
) -> Iterator[Tensor]:
    """Hits on the checked images, (checked,), in each measurement."""
    preprocessing = student.require_preprocessing()
    checked = image_batches(task.checked, preprocessing, EVALUATION_BATCH, device)
    batches = mixed_batches(task, preprocessing, config.batch_size, device)
    steps, loss = adam_steps(trainable(student.module), config.learning_rate, device), label_loss(student)
    for measured in config.measured:
        while steps.taken < measured:
            steps.take(loss, next(batches))
        predictions = predict_batches(student, checked(None), device)
        yield _hits(require_finite(predictions, f"relearning, step {measured}"))


def _hits(predictions: Predictions) -> Tensor:
    return correct(predictions.logits, predictions.targets)
