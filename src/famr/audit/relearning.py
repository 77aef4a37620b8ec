"""How soon does it come back? Fine-tune copies on a few forgotten images and count the steps.

Steps are counted until accuracy on other forgotten images is back at 95 % of the original's. Good is as many as a
retrained model needs: fewer mean that the class was hidden, not forgotten.

Two choices keep the count honest. Where there are retained images, each step sees as many of them as forgotten ones:
otherwise a network that answers the forgotten class to everything would count as having learned it. And the head's
bias for the forgotten classes starts at the mean of the others, in every model alike: a bias of −20 alone would take
longer to climb than a class takes to be learned.
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
from famr.data.loaders import EVALUATION_BATCH, Batches, image_batches, order
from famr.data.splits import Splits, sample_per_class
from famr.engine.devices import deterministic, pick_device
from famr.engine.inference import accuracy_on_images, predict_batches
from famr.errors import DataError, NumericsError, RequestError
from famr.metrics.forgetting import correct
from famr.models import Classifier
from famr.models.labels import require_same_labels
from famr.models.layers import head_of, trainable
from famr.optim.schedules import epoch_seed

BACK = 0.95
"""The share of the original's accuracy at which the forgotten is back."""

CHECKED = 100
"""The most forgotten images whose accuracy is followed, step by step."""

AT_MOST = 500
"""Retained images to draw from, and held-out ones that are asked about at the end."""


@dataclass(frozen=True)
class Lessons:
    """Adam on `images` forgotten images of each class, in evaluation mode (no dropout, BatchNorm as it is)."""

    images: int = 20
    steps: int = 100
    batch_size: int = 64
    learning_rate: float = 1e-4
    level_bias: bool = True
    """Start the head's bias for the forgotten classes at the mean of the others."""

    def __post_init__(self) -> None:
        for name, holds in (
            ("images", self.images >= 1),
            ("steps", self.steps >= 1),
            ("batch_size", self.batch_size >= 1),
            ("learning_rate", 0 < self.learning_rate < math.inf),
        ):
            if not holds:
                raise RequestError(f"`{name}` must be above 0, got {getattr(self, name)!r}.", where="Lessons")


@dataclass(frozen=True)
class Relearned:
    """One model's way back with one draw of images."""

    seed: int
    images: int
    """Forgotten images it learned from."""
    checked: int
    """Other forgotten images on which accuracy was followed."""
    target: float
    curve: tuple[float, ...]
    """Accuracy on those after 0, 1, 2, … steps; it ends where the target is reached."""
    retain_accuracy: float | None
    """At the end, on held-out retained images."""

    @property
    def steps(self) -> int | None:
        """Steps until the target; None where they were not enough."""
        return len(self.curve) - 1 if self.curve[-1] >= self.target else None

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {**asdict(self), "curve": list(self.curve), "steps": self.steps}


def median_steps(found: Sequence[Relearned]) -> float | None:
    """The median over seeds; None where half of them or more did not get there.

    >>> tries = [Relearned(0, 5, 9, 0.9, curve, None) for curve in ((0.0, 1.0), (0.0, 0.5, 1.0), (0.0, 0.1, 0.2))]
    >>> [run.steps for run in tries], median_steps(tries), median_steps(tries[1:])
    ([1, 2, None], 2.0, None)
    """
    middle = statistics.median(math.inf if run.steps is None else run.steps for run in found)
    return None if math.isinf(middle) else float(middle)


def images_needed(by_images: Mapping[int, Sequence[Relearned]]) -> int | None:
    """The fewest forgotten images with which most seeds got there; None where none did."""
    return next((count for count in sorted(by_images) if median_steps(by_images[count]) is not None), None)


def relearning(
    models: Mapping[str, Classifier],
    splits: Splits,
    original: Classifier,
    lessons: Lessons | None = None,
    *,
    seeds: Sequence[int] = (0, 1, 2),
    device: str | None = None,
) -> dict[str, tuple[Relearned, ...]]:
    """Let copies of each model relearn, from the same images for each seed."""
    lessons = lessons or Lessons()
    place = pick_device(device or "auto")
    if not splits.forget.labelled:
        raise RequestError("Relearning needs the classes of the forget images.", fix="Put them into class folders.")
    for model in (original, *models.values()):
        require_same_labels(model, splits)
    found: dict[str, list[Relearned]] = {name: [] for name in models}
    for seed in seeds:
        learned, others = taught_and_checked(splits.forget, lessons.images, seed)
        before = accuracy_on_images(original, others, place)
        assert before is not None  # the forget images are labelled
        for name, model in models.items():
            found[name].append(relearn(model, learned, others, BACK * before, splits, lessons, seed, place))
    return {name: tuple(runs) for name, runs in found.items()}


def taught_and_checked(forget: Images, count: int, seed: int) -> tuple[Images, Images]:
    """`count` images of each class to learn from, and up to `CHECKED` others to be asked about."""
    taught = sample_per_class(forget, count, seed)
    others = forget.where(~torch.isin(forget.rows, taught.rows))
    if not len(others):
        raise DataError(
            f"All {len(forget)} forget images would be learned from, and none is left to be asked about.",
            fix="Let the model relearn from fewer.",
        )
    return taught, others.take(order(len(others), seed)[:CHECKED])


def relearn(
    model: Classifier,
    taught: Images,
    checked: Images,
    target: float,
    splits: Splits,
    lessons: Lessons,
    seed: int,
    device: torch.device,
) -> Relearned:
    """Fine-tune a copy until its accuracy on `checked` is `target`, or the steps are used up; `model` stays."""
    student = model.copy()
    student.module.to(device).eval()
    if lessons.level_bias:
        level_bias(student, set(splits.forgotten_classes()) & set(taught.targets.tolist()))
    kept = None if splits.retain is None else splits.retain.take(order(len(splits.retain), seed)[:AT_MOST])
    forgotten = image_batches(taught, student.require_preprocessing(), lessons.batch_size, device)
    beside = None if kept is None else image_batches(kept, student.require_preprocessing(), lessons.batch_size, device)
    asked = image_batches(checked, student.require_preprocessing(), EVALUATION_BATCH, device)
    with deterministic(seed):
        curve = tuple(_curve(student, _mixed(forgotten, beside, seed), asked, target, lessons, device))
    end = None
    if splits.test is not None:
        end = accuracy_on_images(student, splits.test.take(order(len(splits.test), seed)[:AT_MOST]), device)
    return Relearned(seed, len(taught), len(checked), target, curve, end)


@torch.no_grad()
def level_bias(model: Classifier, classes: Collection[int]) -> None:
    """Set the head's bias for `classes` to the mean of the others, in place."""
    bias = head_of(model).bias if classes else None
    if bias is not None and len(classes) < len(bias):
        others = [row for row in range(len(bias)) if row not in classes]
        bias[list(classes)] = bias[others].mean()


def _mixed(forgotten: Batches, beside: Batches | None, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Forgotten images without end, with as many retained ones beside them."""
    if beside is None:
        yield from _endless(forgotten, seed)
        return
    retained = _endless(beside, seed)
    left: list[tuple[Tensor, Tensor]] = []
    for images, labels in _endless(forgotten, seed):
        while len(left) < len(labels):
            left += list(zip(*next(retained), strict=True))
        used, left = left[: len(labels)], left[len(labels) :]
        yield (
            torch.cat([images, torch.stack([image for image, _ in used])]),
            torch.cat([labels, torch.stack([label for _, label in used])]),
        )


def _endless(batches: Batches, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    turn = 0
    while True:
        for batch in batches(epoch_seed(seed, turn)):
            yield batch.images, batch.labels
        turn += 1


def _curve(
    student: Classifier,
    lesson: Iterator[tuple[Tensor, Tensor]],
    asked: Batches,
    target: float,
    lessons: Lessons,
    device: torch.device,
) -> Iterator[float]:
    """Accuracy on the images asked about, before the first step and after each."""
    optimiser = torch.optim.Adam(trainable(student.module), lr=lessons.learning_rate)
    for step in range(lessons.steps + 1):
        found = predict_batches(student, asked(None), device)
        if not bool(torch.isfinite(found.logits).all()):
            raise NumericsError("Relearning diverged.", where=f"step {step}", fix="Lower its learning rate.")
        accuracy = float(correct(found.logits, found.targets).mean())
        yield accuracy
        if accuracy >= target or step == lessons.steps:
            return
        images, labels = next(lesson)
        optimiser.zero_grad()
        F.cross_entropy(student.logits(images).float(), labels).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
