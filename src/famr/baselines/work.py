"""What a method that changes weights works with: a copy of the model, the images, and a count of what it used."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import count
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from famr.baselines.alternative import Alternative, Made, Meter, Row
from famr.data import Images
from famr.data.augmentation import Augmentation, augment
from famr.data.loaders import EVALUATION_BATCH, Batch, gpu_pixels, order, pixel_batches
from famr.data.splits import Splits
from famr.engine.bf16 import Bf16Network
from famr.engine.devices import Precision, autocast
from famr.engine.inference import predict_batches
from famr.losses.objective import at_least_float32
from famr.metrics.predictions import Predictions
from famr.models import Classifier
from famr.models.classifier import logits_of
from famr.optim.schedules import epoch_seed


@dataclass(frozen=True, eq=False)
class Shelf:
    """A set of images, on the GPU as a whole where it is small enough."""

    images: Images
    pixels: Tensor | None

    def __len__(self) -> int:
        return len(self.images)


@dataclass(eq=False)
class Work:
    """The copy that is changed, passes over the forget and the retained images, and what was used so far."""

    method: str
    model: Classifier
    splits: Splits
    device: torch.device
    precision: Precision
    seed: int
    classes: int
    meter: Meter
    forget_shelf: Shelf
    retain_shelf: Shelf | None
    views: torch.Generator
    image_passes: int = 0
    history: list[Row] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    _bf16: dict[nn.Module, Bf16Network] = field(default_factory=dict)

    def logits(
        self, images: Tensor, model: Classifier | None = None, weights: Mapping[str, Tensor] | None = None
    ) -> Tensor:
        """Predictions of the copy, or of another model, in the precision of the run; logits themselves in float32.

        `weights` are used instead of its own, by their names.
        """
        self.image_passes += len(images)
        asked = model or self.model
        if weights is None and self.precision == "bf16":
            if asked.module not in self._bf16:
                self._bf16[asked.module] = Bf16Network(asked.module, images[:2])
            return at_least_float32(logits_of(self._bf16[asked.module](images)))
        with autocast(self.device, self.precision):
            if weights is None:
                return at_least_float32(asked.logits(images))
            said = torch.func.functional_call(asked.module, dict(weights), (images,))
            return at_least_float32(logits_of(said))

    def logits_of_both(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """Predictions of the copy on two batches: on a GPU in one go, as it is kept waiting by each call.

        For a network in evaluation mode, where no image sees its neighbours.
        """
        if self.device.type != "cuda":
            return self.logits(first), self.logits(second)
        said = self.logits(torch.cat([first, second]))
        return said[: len(first)], said[len(first) :]

    def frozen(self) -> Classifier:
        """The model as it is now, in evaluation mode and without gradients."""
        kept = self.model.copy()
        kept.module.eval().requires_grad_(False)
        return kept

    @property
    def retained(self) -> Shelf:
        """The retained images; `check` has seen to it that there are some."""
        assert self.retain_shelf is not None
        return self.retain_shelf

    def forget(self, size: int, epoch: int, augmentation: Augmentation | None = None) -> Iterator[Batch]:
        """One pass over the forget set in a random order."""
        return self._pass(self.forget_shelf, size, epoch_seed(self.seed, epoch), augmentation)

    def retain(self, size: int, epoch: int, augmentation: Augmentation | None = None) -> Iterator[Batch]:
        """One pass over the retained images in a random order; a short last batch is left out, as in training."""
        for batch in self._pass(self.retained, size, epoch_seed(self.seed, epoch), augmentation):
            if len(batch.labels) == min(size, len(self.retained)):
                yield batch

    def both(
        self, forget_size: int, retain_size: int, epoch: int, augmentation: Augmentation | None = None
    ) -> Iterator[tuple[Batch, Batch]]:
        """One pass over the retained images, each batch with one of the forget set, which begins anew as needed."""
        ahead = self._endless_forget(forget_size, epoch, augmentation)
        for batch in self.retain(retain_size, epoch, augmentation):
            yield next(ahead), batch

    def steps_of_retain(self, size: int) -> int:
        """Steps of one pass over the retained images."""
        return max(1, len(self.retained) // size)

    def steps_of_forget(self, size: int) -> int:
        """Steps of one pass over the forget set."""
        return -(-len(self.forget_shelf) // size)

    def share_of_forget(self, size: int) -> int:
        """How many images of a batch belong to the forget set, if both sets are shuffled together; at least one."""
        whole = len(self.forget_shelf) + len(self.retained)
        return min(max(1, round(size * len(self.forget_shelf) / whole)), len(self.forget_shelf))

    def in_order(self, images: Images, size: int = EVALUATION_BATCH) -> Iterator[Batch]:
        """One pass in the order of the set."""
        shelves = (self.forget_shelf, self.retain_shelf)
        shelf = next((s for s in shelves if s is not None and s.images is images), Shelf(images, None))
        return self._pass(shelf, size, None, None)

    def answers(self, images: Images) -> Predictions:
        """What the copy says now, in the order of the set, on the CPU."""
        self.image_passes += len(images)
        return predict_batches(self.model, self.in_order(images), self.device, self.precision)

    def draws(self) -> torch.Generator:
        """Random numbers on the CPU, the same on every device."""
        return torch.Generator().manual_seed(self.seed)

    def _endless_forget(self, size: int, epoch: int, augmentation: Augmentation | None) -> Iterator[Batch]:
        for turn in count():
            seed = epoch_seed(epoch_seed(self.seed, epoch) % 2**31, turn)
            yield from self._pass(self.forget_shelf, size, seed, augmentation)

    def _pass(self, shelf: Shelf, size: int, seed: int | None, augmentation: Augmentation | None) -> Iterator[Batch]:
        """As the network takes them; resized, cropped and mirrored where the network is."""
        prepared = self.model.require_preprocessing()
        if shelf.pixels is None:
            for pixels, labels, positions in pixel_batches(shelf.images, prepared, size, self.device, seed):
                yield Batch(prepared.normalise(self._view(pixels, augmentation)), labels, positions)
            return
        targets = shelf.images.targets.to(self.device)
        places = order(len(shelf), seed).to(self.device)  # once a pass: to send them step by step is to wait each time
        for positions in torch.split(places, size):
            stored = shelf.pixels[positions]
            pixels = prepared.fit(stored) if augmentation is None else self._view(stored, augmentation)
            yield Batch(prepared.normalise(pixels), targets[positions], positions)

    def _view(self, pixels: Tensor, augmentation: Augmentation | None) -> Tensor:
        if augmentation is None:
            return pixels
        return augment(pixels, self.model.require_preprocessing().crop, augmentation, self.views)


class WeightChange(Alternative):
    """A method that starts from the original's weights and changes them: all but retraining and SISA."""

    trains_normalisation: ClassVar[bool] = False
    """Whether the network is in training mode, so that dropout acts and BatchNorm takes new statistics. Only methods
    that see nothing but retained images do that; elsewhere statistics of forget images would move the model unasked."""

    @abstractmethod
    def change(self, work: Work) -> None:
        """Change the weights of `work.model` in place."""

    def to_json(self) -> dict[str, Any]:
        """Its name and its numbers, as plain values."""
        return {"name": self.name, **asdict(self)}  # type: ignore[call-overload]

    def made(self, original: Classifier, splits: Splits, seed: int, device: torch.device, precision: Precision) -> Made:
        """A copy of the original, changed; the clock starts when copy and images are on the device."""
        home = next(original.module.parameters()).device
        copy = original.copy()
        copy.module.to(device).train(self.trains_normalisation)
        prepared = copy.require_preprocessing()

        def shelf(images: Images) -> Shelf:
            return Shelf(images, gpu_pixels(images, prepared, device))

        forget = shelf(splits.forget)
        retain = shelf(splits.retain) if splits.retain is not None and self.needs_retain else None
        views = torch.Generator(device).manual_seed(seed)
        classes = copy.class_count()
        assert classes is not None  # it is known how to feed the network, so it could be asked
        with Meter(device) as meter:
            work = Work(self.name, copy, splits, device, precision, seed, classes, meter, forget, retain, views)
            self.change(work)
        copy.module.eval().zero_grad()
        copy.module.to(home)
        return Made(copy, meter.seconds, work.image_passes, meter.peak_memory, tuple(work.history), work.facts)
