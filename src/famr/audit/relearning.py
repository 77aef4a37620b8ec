"""Relearn time: how many steps until a forgotten class is back? [Golatkar et al. 2020]

Copies are fine-tuned on a few forgotten images until accuracy on other forgotten images is back at 95 % of the
original's. A perfect result is the number of steps of a retrained model: fewer mean that the class was hidden, not
forgotten.

Two choices make the count meaningful. Where there are retained images, each step sees as many of them as forgotten
ones: otherwise a network that predicts the forgotten class for everything would count as having learned it. And the
head's bias for the forgotten classes starts at the mean of the remaining ones, in every model alike: a bias of −20
alone would take longer to climb than a class takes to be learned.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from famr.data import Images
from famr.data.loaders import EVALUATION_BATCH, Batches, epoch_seed, image_batches, order
from famr.data.splits import Splits, sample_per_class
from famr.engine.devices import deterministic, pick_device
from famr.engine.inference import accuracy_on_images, predict_batches
from famr.errors import DataError, NumericsError, RequestError
from famr.metrics.forgetting import correct
from famr.models import Classifier
from famr.models.labels import require_same_labels
from famr.models.layers import head_of, trainable
from famr.training.steps import GradientSteps

RECOVERED = 0.95
"""The share of the original's accuracy at which a class counts as recovered."""
CHECKED = 100
"""The most forgotten images on which accuracy is measured after each step."""
AT_MOST = 500
"""Retained images to draw from, and held-out ones evaluated at the end."""


@dataclass(frozen=True)
class RelearningConfig:
    """Fine-tuning by Adam in evaluation mode (no dropout, BatchNorm statistics fixed).

    Attributes:
        images: Forgotten images of each class to learn from.
        steps: The most steps.
        batch_size: Forgotten images in a step; as many retained ones come on top.
        learning_rate: Of Adam.
        level_bias: Start the head's bias for the forgotten classes at the mean of the remaining ones.
    """

    images: int = 20
    steps: int = 100
    batch_size: int = 64
    learning_rate: float = 1e-4
    level_bias: bool = True

    def __post_init__(self) -> None:
        for name, holds in (
            ("images", self.images >= 1),
            ("steps", self.steps >= 1),
            ("batch_size", self.batch_size >= 1),
            ("learning_rate", 0 < self.learning_rate < math.inf),
        ):
            if not holds:
                raise RequestError(f"`{name}` must be above 0, got {getattr(self, name)!r}.", where="RelearningConfig")


@dataclass(frozen=True)
class RelearningRun:
    """One model's relearning from one draw of images.

    Attributes:
        seed: Of the draw and of the order of the batches.
        images: Forgotten images that it learned from.
        checked: Other forgotten images on which accuracy was measured.
        target: The accuracy at which the class counts as recovered.
        curve: Accuracy on the checked images after 0, 1, 2, … steps; it ends where the target is reached.
        retain_accuracy: At the end, on held-out retained images; None without such images.
    """

    seed: int
    images: int
    checked: int
    target: float
    curve: tuple[float, ...]
    retain_accuracy: float | None

    @property
    def steps(self) -> int | None:
        """Steps until the target; None where it was not reached."""
        return len(self.curve) - 1 if self.curve[-1] >= self.target else None

    @property
    def steps_or_more(self) -> int:
        """Steps until the target; one more than were taken where it was not reached.

        >>> reached, missed = (RelearningRun(0, 5, 9, 0.9, curve, None) for curve in ((0.0, 1.0), (0.0, 0.5)))
        >>> reached.steps_or_more, missed.steps_or_more
        (1, 2)
        """
        return len(self.curve) if self.steps is None else self.steps

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {**asdict(self), "curve": list(self.curve), "steps": self.steps}


def median_steps(runs: Sequence[RelearningRun]) -> float | None:
    """The median number of steps; None where half of the runs or more did not reach the target.

    Args:
        runs: Of one model, one for each seed.

    >>> runs = [RelearningRun(0, 5, 9, 0.9, curve, None) for curve in ((0.0, 1.0), (0.0, 0.5, 1.0), (0.0, 0.1, 0.2))]
    >>> [run.steps for run in runs], median_steps(runs), median_steps(runs[1:])
    ([1, 2, None], 2.0, None)
    """
    middle = statistics.median(math.inf if run.steps is None else run.steps for run in runs)
    return None if math.isinf(middle) else float(middle)


def images_needed(by_images: Mapping[int, Sequence[RelearningRun]]) -> int | None:
    """The fewest forgotten images with which most seeds reach the target; None where none are enough.

    Args:
        by_images: Runs by the number of images they learned from.
    """
    return next((count for count in sorted(by_images) if median_steps(by_images[count]) is not None), None)


def steps_saved(runs: Sequence[RelearningRun], references: Sequence[Sequence[RelearningRun]]) -> list[float]:
    """1 − steps / steps of a reference model, for each pair of runs with the same seed; below 0 it was slower.

    Args:
        runs: Of the model under audit, one for each seed.
        references: The same of each reference model.
    """
    pairs = [pair for reference in references for pair in zip(runs, reference, strict=True)]
    steps = [(run.steps_or_more, other.steps_or_more) for run, other in pairs]
    return [(expected - taken) / max(expected, 1) for taken, expected in steps]


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
        original: Its accuracy sets the target.
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
        task = RelearningTask.draw(splits, config.images, seed)
        before = accuracy_on_images(original, task.checked, torch_device)
        assert before is not None  # the forget images are labelled
        for name, model in models.items():
            runs[name].append(relearn(model, task, RECOVERED * before, config, torch_device))
    return {name: tuple(of_model) for name, of_model in runs.items()}


@dataclass(frozen=True, eq=False)
class RelearningTask:
    """The images of one run, the same for every model.

    Attributes:
        learned: Forgotten images to learn from.
        checked: Other forgotten images, on which accuracy is measured after each step.
        retain: Retained images that come on top in each step; None without.
        test: Held-out retained images, evaluated at the end; None without.
        forgotten: Classes whose bias is levelled.
        seed: Of the draw and of the order of the batches.
    """

    learned: Images
    checked: Images
    retain: Images | None
    test: Images | None
    forgotten: frozenset[int]
    seed: int

    @classmethod
    def draw(cls, splits: Splits, count: int, seed: int) -> RelearningTask:
        """Draw the images.

        Args:
            splits: Of the request.
            count: Forgotten images of each class to learn from.
            seed: Of the draw.

        Raises:
            DataError: Where no forget image is left to measure accuracy on.
        """
        learned = sample_per_class(splits.forget, count, seed)
        checked = splits.forget.where(~torch.isin(splits.forget.rows, learned.rows))
        if not len(checked):
            raise DataError(
                f"All {len(splits.forget)} forget images would be learned from; none is left to measure accuracy on.",
                fix="Let the model relearn from fewer.",
            )
        retain, test = (
            None if images is None else images.take(order(len(images), seed)[:AT_MOST])
            for images in (splits.retain, splits.test)
        )
        forgotten = frozenset(splits.forgotten_classes()) & frozenset(learned.targets.tolist())
        return cls(learned, checked.take(order(len(checked), seed)[:CHECKED]), retain, test, forgotten, seed)


def relearn(
    model: Classifier, task: RelearningTask, target: float, config: RelearningConfig, device: torch.device
) -> RelearningRun:
    """Fine-tune a copy until its accuracy on the checked images reaches the target, or the steps are used up.

    Args:
        model: Is not changed.
        task: The images.
        target: Accuracy, as a fraction.
        config: Of the fine-tuning.
        device: Where to compute.

    Raises:
        NumericsError: Where it diverges.
    """
    student = model.copy()
    student.module.to(device).eval()
    if config.level_bias:
        level_bias(student, task.forgotten)
    preprocessing = student.require_preprocessing()
    learned = image_batches(task.learned, preprocessing, config.batch_size, device)
    retain = None if task.retain is None else image_batches(task.retain, preprocessing, config.batch_size, device)
    checked = image_batches(task.checked, preprocessing, EVALUATION_BATCH, device)
    with deterministic(task.seed):
        curve = tuple(_accuracies(student, _mixed(learned, retain, task.seed), checked, target, config, device))
    end = None if task.test is None else accuracy_on_images(student, task.test, device)
    return RelearningRun(task.seed, len(task.learned), len(task.checked), target, curve, end)


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


def _mixed(learned: Batches, retain: Batches | None, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless batches of forgotten images, with as many retained ones."""
    if retain is None:
        yield from _endless(learned, seed)
        return
    source = _endless(retain, seed)
    left: list[tuple[Tensor, Tensor]] = []
    for images, labels in _endless(learned, seed):
        while len(left) < len(labels):
            left += list(zip(*next(source), strict=True))
        used, left = left[: len(labels)], left[len(labels) :]
        yield (
            torch.cat([images, torch.stack([image for image, _ in used])]),
            torch.cat([labels, torch.stack([label for _, label in used])]),
        )


def _endless(batches: Batches, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    epoch = 0
    while True:
        for batch in batches(epoch_seed(seed, epoch)):
            yield batch.images, batch.labels
        epoch += 1


def _accuracies(
    student: Classifier,
    batches: Iterator[tuple[Tensor, Tensor]],
    checked: Batches,
    target: float,
    config: RelearningConfig,
    device: torch.device,
) -> Iterator[float]:
    """Accuracy on the checked images, before the first step and after each."""
    parameters = trainable(student.module)
    rate = torch.tensor(config.learning_rate, device=device) if device.type == "cuda" else config.learning_rate
    optimiser = torch.optim.Adam(parameters, lr=rate, capturable=device.type == "cuda")
    steps = GradientSteps(parameters, optimiser, lambda _step: config.learning_rate, device)

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(student.logits(images).float(), labels)

    for step in range(config.steps + 1):
        predictions = predict_batches(student, checked(None), device)
        if not bool(torch.isfinite(predictions.logits).all()):
            raise NumericsError("Relearning diverged.", where=f"step {step}", fix="Lower its learning rate.")
        accuracy = float(correct(predictions.logits, predictions.targets).mean())
        yield accuracy
        if accuracy >= target or step == config.steps:
            return
        steps.take(loss, next(batches))
