"""What a baseline that changes weights works with: a copy of the model, batches of both sets, its forward passes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from famr.baselines.base import Baseline, BaselineOutput, BaselineRow, RunSettings, preload
from famr.baselines.costs import CostMeter
from famr.data import Images
from famr.data.augmentation import Augmentation, augment
from famr.data.loaders import (
    EVALUATION_BATCH,
    Batch,
    Batches,
    epoch_seed,
    image_batches,
    training_batches,
)
from famr.data.splits import Splits
from famr.engine.bf16 import Bf16Network
from famr.engine.devices import autocast
from famr.engine.inference import predict
from famr.losses.objective import at_least_float32
from famr.metrics.predictions import Predictions
from famr.models import Classifier
from famr.models.classifier import logits_of


class MixedBatch(NamedTuple):
    """A batch of both sets, forget images first.

    Attributes:
        images: (batch, channels, height, width), as the model takes them.
        labels: (batch,) class indices.
        forgotten: (batch,) whether an image belongs to the forget set.
    """

    images: Tensor
    labels: Tensor
    forgotten: Tensor


class BaselineSession:
    """One run of a baseline.

    The methods for batches of an epoch give one pass in a random order that depends on the seed and the epoch alone.
    Their `labels` replace those of the forget images: one row for each image of the forget set, in its order.

    Args:
        method: Name of the baseline, for error messages.
        model: A copy of the original, on the device.
        splits: The request's sets.
        settings: Seed, device and precision.
        augmentation: Random views of the images in the batches of an epoch; None: the images as they are.

    Attributes:
        method: Name of the baseline.
        model: The classifier whose weights the baseline changes.
        splits: The request's sets.
        forget: Images to forget.
        retain: Retained images, none where none were given; a baseline may replace them by some of them.
        device: Where it computes.
        precision: Of the forward passes.
        seed: Of every random draw.
        augmentation: Random views of the images in the batches of an epoch.
        meter: Seconds and memory so far.
        image_passes: Images that went through a network so far.
        history: One row an epoch or phase.
        facts: What the baseline records about its run, as plain values.
    """

    def __init__(
        self,
        method: str,
        model: Classifier,
        splits: Splits,
        settings: RunSettings,
        augmentation: Augmentation | None = None,
    ) -> None:
        self.method, self.model, self.splits = method, model, splits
        self.forget = splits.forget
        self.retain = splits.forget.take(torch.arange(0)) if splits.retain is None else splits.retain
        self.device, self.precision, self.seed = settings.device, settings.precision, settings.seed
        self.augmentation = augmentation
        self.meter = CostMeter(settings.device)
        self.image_passes = 0
        self.history: list[BaselineRow] = []
        self.facts: dict[str, Any] = {}
        self._views = torch.Generator(settings.device).manual_seed(settings.seed)
        self._passes: dict[tuple[Images, int], Batches] = {}
        self._bf16: dict[nn.Module, Bf16Network] = {}

    @property
    def classes(self) -> int:
        """Number of classes."""
        classes = self.model.class_count()
        assert classes is not None  # the model has preprocessing, otherwise there would be no batches
        return classes

    def generator(self) -> torch.Generator:
        """A new generator with the run's seed, on the CPU: the same numbers on every device."""
        return torch.Generator().manual_seed(self.seed)

    def frozen_copy(self) -> Classifier:
        """The model with its present weights, in evaluation mode and without gradients."""
        copy = self.model.copy()
        copy.module.eval().requires_grad_(False)
        return copy

    @contextmanager
    def evaluation_mode(self) -> Iterator[None]:
        """The model in evaluation mode, for what a method computes before its steps."""
        training = self.model.module.training
        self.model.module.eval()
        try:
            yield
        finally:
            self.model.module.train(training)

    def logits(
        self, images: Tensor, model: Classifier | None = None, weights: Mapping[str, Tensor] | None = None
    ) -> Tensor:
        """Logits in the precision of the run, returned in float32.

        Args:
            images: (batch, channels, height, width), as the model takes them.
            model: None: the model that the baseline changes.
            weights: Used in place of the model's own, by name.

        Returns:
            (batch, classes).
        """
        self.image_passes += len(images)
        module = (model or self.model).module
        if weights is None and self.precision == "bf16":
            if module not in self._bf16:
                self._bf16[module] = Bf16Network(module, images[:2])
            return at_least_float32(logits_of(self._bf16[module](images)))
        with autocast(self.device, self.precision):
            output = module(images) if weights is None else torch.func.functional_call(module, dict(weights), (images,))
        return at_least_float32(logits_of(output))

    def predictions(self, images: Images) -> Predictions:
        """Logits of the model with its present weights, in the order of the images, on the CPU.

        Args:
            images: Stored images.
        """
        self.image_passes += len(images)
        return predict(self.model, images, self.device, self.precision)

    def batches(
        self,
        images: Images,
        size: int = EVALUATION_BATCH,
        seed: int | None = None,
        augmentation: Augmentation | None = None,
    ) -> Iterator[Batch]:
        """One pass over any images.

        Args:
            images: Stored images.
            size: Images of a batch; the last one may have fewer.
            seed: Draws the order; None for the stored order.
            augmentation: Random views; None: the images as they are.
        """
        if augmentation is not None:
            yield from self._augmented(images, size, seed, augmentation)
            return
        if (images, size) not in self._passes:
            preprocessing = self.model.require_preprocessing()
            self._passes[images, size] = image_batches(images, preprocessing, size, self.device)
        yield from self._passes[images, size](seed)

    def forget_batches(self, size: int, epoch: int, labels: Tensor | None = None) -> Iterator[Batch]:
        """One pass over the forget set.

        Args:
            size: Images of a batch; the last one may have fewer.
            epoch: Number of the epoch.
            labels: Replace those of the forget images.
        """
        return self._forget_pass(size, epoch_seed(self.seed, epoch), labels)

    def retain_batches(self, size: int, epoch: int) -> Iterator[Batch]:
        """One pass over the retained images, without an incomplete last batch, as in `famr.fit`.

        Args:
            size: Images of a batch.
            epoch: Number of the epoch.
        """
        for batch in self.batches(self.retain, size, epoch_seed(self.seed, epoch), self.augmentation):
            if len(batch.labels) == min(size, len(self.retain)):
                yield batch

    def paired_batches(
        self,
        forget_size: int,
        retain_size: int,
        epoch: int,
        labels: Tensor | None = None,
    ) -> Iterator[tuple[Batch, Batch]]:
        """One pass over the retained images, each batch with one of the forget set, which is repeated as needed.

        Args:
            forget_size: Images of a forget batch.
            retain_size: Images of a retain batch.
            epoch: Number of the epoch.
            labels: Replace those of the forget images.

        Yields:
            A forget batch and a retain batch.
        """
        forget = self._repeated_forget_passes(forget_size, epoch, labels)
        for retain in self.retain_batches(retain_size, epoch):
            yield next(forget), retain

    def mixed_batches(self, size: int, epoch: int, labels: Tensor | None = None) -> Iterator[MixedBatch]:
        """One pass over the retained images, each batch with forget images in the proportion of the two sets.

        Args:
            size: Images of a batch, both sets together.
            epoch: Number of the epoch.
            labels: Replace those of the forget images.
        """
        for forget, retain in self.paired_batches(*self._mixed_sizes(size), epoch, labels):
            images = torch.cat([forget.images, retain.images])
            forgotten = torch.arange(len(images), device=self.device) < len(forget.images)
            yield MixedBatch(images, torch.cat([forget.labels, retain.labels]), forgotten)

    def forget_steps(self, size: int) -> int:
        """Number of batches in `forget_batches`.

        Args:
            size: Images of a batch.
        """
        return -(-len(self.forget) // size)

    def retain_steps(self, size: int) -> int:
        """Number of batches in `retain_batches` and `paired_batches`.

        Args:
            size: Retained images of a batch.
        """
        return max(1, len(self.retain) // size)

    def mixed_steps(self, size: int) -> int:
        """Number of batches in `mixed_batches`.

        Args:
            size: Images of a batch, both sets together.
        """
        return self.retain_steps(self._mixed_sizes(size)[1])

    def _mixed_sizes(self, size: int) -> tuple[int, int]:
        """Forget and retained images of a mixed batch, at least one of each."""
        share = len(self.forget) / (len(self.forget) + len(self.retain))
        forget = min(max(1, round(size * share)), len(self.forget))
        return forget, max(1, size - forget)

    def _forget_pass(self, size: int, seed: int, labels: Tensor | None) -> Iterator[Batch]:
        rows = None if labels is None else labels.to(self.device)
        for batch in self.batches(self.forget, size, seed, self.augmentation):
            yield batch if rows is None else batch._replace(labels=rows[batch.positions.to(self.device)])

    def _repeated_forget_passes(self, size: int, epoch: int, labels: Tensor | None) -> Iterator[Batch]:
        for repetition in count():
            seed = epoch_seed(epoch_seed(self.seed, epoch) % 2**31, repetition)
            yield from self._forget_pass(size, seed, labels)

    def _augmented(self, images: Images, size: int, seed: int | None, augmentation: Augmentation) -> Iterator[Batch]:
        preprocessing = self.model.require_preprocessing()
        view = partial(augment, size=preprocessing.crop, augmentation=augmentation, generator=self._views)
        for batch in training_batches(images, preprocessing, size, self.device, view)(seed):
            yield batch._replace(images=preprocessing.normalise(batch.images))


class WeightBaseline(Baseline):
    """A baseline that starts from the original's weights and changes them: all but retraining and SISA."""

    @abstractmethod
    def change(self, session: BaselineSession) -> None:
        """Change the weights of `session.model` in place.

        Args:
            session: The model and its batches.
        """

    def shortened(self, steps: int, planned: int) -> Self:
        """See `Baseline.shortened`.

        Args:
            steps: Steps that it may take.
            planned: Steps that it takes uncut.
        """
        own = getattr(self, "steps", None)
        return self if own is None else self.with_numbers(steps=own.within(steps, planned))

    def run(self, original: Classifier, splits: Splits, settings: RunSettings) -> BaselineOutput:
        """See `Baseline.run`. Costs are measured from when the copy and the images are on the device."""
        home = next(original.module.parameters()).device
        model = original.copy()
        steps = getattr(self, "steps", None)
        model.module.to(settings.device).train(steps is not None and steps.training_mode)
        used = (splits.forget, splits.retain if self.needs_retain else None)
        preload(used, model.require_preprocessing(), settings.device)
        session = BaselineSession(self.name, model, splits, settings, None if steps is None else steps.augmentation)
        with session.meter:
            self.change(session)
        model.module.eval().zero_grad()
        model.module.to(home)
        return BaselineOutput(
            model=model,
            seconds=session.meter.seconds,
            image_passes=session.image_passes,
            peak_memory=session.meter.peak_memory,
            history=tuple(session.history),
            facts=session.facts,
        )
