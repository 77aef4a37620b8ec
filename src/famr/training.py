"""`fit`: train or fine-tune a classifier with cross-entropy, as originals and retrained references are made."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from famr.data import Images
from famr.data.augmentation import Augmentation, augment
from famr.data.loaders import Batch, gpu_pixels, order, pixel_batches
from famr.engine.devices import Precision, deterministic, pick_device
from famr.engine.finite import name_bad_images, require_finite
from famr.engine.graphs import Captured
from famr.engine.kernels import get_ready
from famr.engine.lean import lean_pays, one_pass
from famr.engine.waking import wakes
from famr.errors import RequestError
from famr.models import Classifier
from famr.models.classifier import logits_of
from famr.models.layers import trainable
from famr.runs.resume import ResumeState, State, optimiser_tensors, restore_optimiser
from famr.unlearn.loop import Step, epoch_seed, set_rate

COMPILE_FROM_STEPS = 5000
"""Compilation takes half a minute on a GPU, and then saves a few milliseconds a step: with fewer it does not pay."""
Stepping = Callable[[Batch], Tensor]
"""A step on a batch of views, in place; its loss and its accuracy, in one tensor."""
Taking = Callable[[Batch, int], Tensor]
"""The same, told how many steps are left."""
SETTLING = 3
"""Steps that are taken plainly before one is captured: a compiled network may still be changing in the second."""


@dataclass(frozen=True)
class Training:
    """AdamW with a linear warm-up and a cosine to zero."""

    epochs: int = 10
    batch_size: int = 128
    learning_rate: float = 3e-4
    weight_decay: float = 0.05
    warmup_share: float = 0.1
    """The share of all steps over which the learning rate rises from zero."""
    label_smoothing: float = 0.0
    gradient_clip: float = 1.0
    augmentation: Augmentation | None = field(default_factory=Augmentation)
    precision: Precision | None = None
    """None: bf16 on CUDA, fp32 elsewhere."""
    compile: bool | None = None
    """None: on CUDA, where there are enough steps for it to pay."""

    def __post_init__(self) -> None:
        for name, holds, must in (
            ("epochs", self.epochs >= 1, "at least 1"),
            ("batch_size", self.batch_size >= 1, "at least 1"),
            ("learning_rate", 0 < self.learning_rate < math.inf, "above 0"),
            ("weight_decay", self.weight_decay >= 0, "at least 0"),
            ("warmup_share", 0 <= self.warmup_share < 1, "from 0 to 1"),
            ("label_smoothing", 0 <= self.label_smoothing < 1, "from 0 to 1"),
            ("gradient_clip", self.gradient_clip > 0, "above 0"),
            ("precision", self.precision in (None, *get_args(Precision)), "fp32, bf16 or None"),
        ):
            if not holds:
                raise RequestError(f"`{name}` must be {must}, got {getattr(self, name)!r}.", where="Training")


@dataclass(frozen=True)
class TrainingRow:
    """One epoch of training: mean loss and accuracy on the augmented images, learning rate, seconds so far."""

    epoch: int
    step: int
    loss: float
    accuracy: float
    learning_rate: float
    seconds: float


@dataclass(frozen=True, eq=False)
class Trained:
    """The outcome of `fit`."""

    model: Classifier
    training: Training
    seed: int
    history: tuple[TrainingRow, ...]
    device: str
    precision: Precision

    @property
    def seconds(self) -> float:
        """Time spent in training steps."""
        return self.history[-1].seconds

    def to_json(self) -> dict[str, Any]:
        """What run.json says about the training."""
        return {
            "training": {**asdict(self.training), "precision": self.precision},
            "seed": self.seed,
            "device": self.device,
            "seconds": self.seconds,
        }

    def save(self, output_dir: str | Path, *, overwrite: bool = False) -> Path:
        """Write a run folder that loads in the model's own library."""
        from famr.runs.folder import save_trained

        return save_trained(self, Path(output_dir), overwrite=overwrite)


def learning_rate_factor(step: int, steps: int, warmup_share: float) -> float:
    """Linear from 0 to 1 over the warm-up, then a cosine down to 0 at the last step.

    >>> [round(learning_rate_factor(step, 10, 0.2), 3) for step in (0, 1, 2, 6, 10)]
    [0.5, 1.0, 1.0, 0.5, 0.0]
    """
    warmup = round(warmup_share * steps)
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def fit(
    model: Classifier,
    images: Images,
    training: Training | None = None,
    *,
    seed: int = 0,
    device: str | None = None,
    resume_state: ResumeState | None = None,
    on_event: Callable[[Step | TrainingRow], None] | None = None,
) -> Trained:
    """Train a copy of `model` on `images`; the model itself is not changed.

    Train on `splits.retain` for a reference that never saw the forget set. `resume_state` keeps the state of the
    training, and goes on from it where it was begun before.
    """
    training = training or Training()
    place = pick_device(device or "auto")
    precision: Precision = training.precision or ("bf16" if place.type == "cuda" else "fp32")
    if not images.labelled:
        raise RequestError("Training needs a class for every image.", fix="Put the images into class folders.")
    state = None
    if resume_state is not None:
        what = {"training": asdict(training), "precision": precision, "seed": seed, "device": str(place)}
        state = resume_state.begin(start=model.digest(), images=images.ids, targets=images.targets.tolist(), **what)
    trained = model.copy()
    trained.module.to(place)
    with deterministic(seed), name_bad_images(images.ids):
        history = tuple(_epochs(trained, images, training, precision, seed, place, on_event, resume_state, state))
    trained.module.cpu().eval().zero_grad()
    return Trained(trained, training, seed, history, str(place), precision)


def _epochs(
    model: Classifier,
    images: Images,
    training: Training,
    precision: Precision,
    seed: int,
    device: torch.device,
    on_event: Callable[[Step | TrainingRow], None] | None,
    resume_state: ResumeState | None,
    state: State | None,
) -> Iterator[TrainingRow]:
    module = model.module.train()
    steps = training.epochs * max(1, len(images) // training.batch_size)
    pays = device.type == "cuda" and steps >= COMPILE_FROM_STEPS
    compiled = pays if training.compile is None else training.compile
    optimiser = _adamw(module, training, device)
    generator = torch.Generator(device).manual_seed(seed)
    views = _views(model, images, training, device, generator)
    take = _taking(_step(model, training, precision, device, optimiser, compiled), device)
    history = [] if state is None else [TrainingRow(**row) for row in state.facts["history"]]
    seconds, step = (history[-1].seconds, history[-1].step) if history else (0.0, 0)
    if state is not None:
        _go_on(module, optimiser, generator, state.tensors)
    yield from history
    for epoch in range(len(history) + 1, training.epochs + 1):
        start = time.perf_counter()
        told: list[Tensor] = []
        places: list[Tensor] = []
        for batch in views(epoch_seed(seed, epoch)):
            if len(batch.labels) < min(training.batch_size, len(images)):
                continue  # a short last batch would upset BatchNorm, and be compiled anew
            rate = training.learning_rate * learning_rate_factor(step, steps, training.warmup_share)
            set_rate(optimiser, rate)
            told.append(take(batch, steps - step))
            places.append(batch.positions)
            step += 1
            if on_event is not None:
                on_event(Step(epoch, step))
        losses, hits = torch.stack(told).unbind(dim=-1)
        mean_loss, accuracy = float(losses.mean()), float(hits.mean())
        seconds += time.perf_counter() - start
        require_finite(list(losses), places, module, epoch)
        row = TrainingRow(epoch, step, mean_loss, accuracy, rate, seconds)
        if on_event is not None:
            on_event(row)
        history.append(row)
        if resume_state is not None and resume_state.due():
            resume_state.keep(_state(module, optimiser, generator), {"history": [asdict(each) for each in history]})
        yield row


def _step(
    model: Classifier,
    training: Training,
    precision: Precision,
    device: torch.device,
    optimiser: torch.optim.Optimizer,
    compiled: bool,
) -> Stepping:
    """What is not compiled is lean on a GPU, as the steps of forgetting are."""
    module, preprocessing = model.module, model.require_preprocessing()
    network: Callable[[Tensor], Any] = torch.compile(module) if compiled else module
    lean = lean_pays(device) and not compiled
    if lean and precision == "bf16":
        get_ready(module)

    def step(batch: Batch) -> Tensor:
        labels = batch.labels.to(device)
        with wakes(device) if lean else nullcontext(), one_pass(module, device, precision, lean=lean):
            logits = logits_of(network(preprocessing.normalise(batch.images))).float()
        loss = F.cross_entropy(logits, labels, label_smoothing=training.label_smoothing)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(module.parameters(), training.gradient_clip)
        optimiser.step()
        hits = (logits.detach().argmax(dim=-1) == labels).float().mean()
        return torch.stack([loss.detach(), hits])

    return step


def _taking(step: Stepping, device: torch.device) -> Taking:
    """The way to take a step: on CUDA it is captured and replayed."""
    if device.type != "cuda":
        return lambda batch, _left: step(batch)
    captured = Captured(lambda *parts: step(Batch(*parts)), device, plain=SETTLING)
    return lambda batch, left: captured(batch, (len(batch.images),), left)


def _state(module: nn.Module, optimiser: torch.optim.Optimizer, generator: torch.Generator) -> dict[str, Tensor]:
    """Everything that training changes: weights, statistics, the optimiser's memory, and the dice."""
    dice = {"dice.augmentation": generator.get_state(), "dice.cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        dice["dice.cuda"] = torch.cuda.get_rng_state()
    weights = {f"module.{name}": tensor for name, tensor in module.state_dict().items()}
    return {**weights, **dice, **optimiser_tensors(optimiser)}


def _go_on(
    module: nn.Module, optimiser: torch.optim.Optimizer, generator: torch.Generator, tensors: Mapping[str, Tensor]
) -> None:
    """The inverse of `_state`."""
    ours = {name.removeprefix("module."): tensor for name, tensor in tensors.items() if name.startswith("module.")}
    module.load_state_dict(ours)
    restore_optimiser(optimiser, tensors)
    generator.set_state(tensors["dice.augmentation"])
    torch.set_rng_state(tensors["dice.cpu"])
    if "dice.cuda" in tensors:
        torch.cuda.set_rng_state(tensors["dice.cuda"])


def _adamw(module: nn.Module, training: Training, device: torch.device) -> torch.optim.AdamW:
    """AdamW that does not decay biases and normalisation."""
    parameters = trainable(module)
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": training.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    if device.type == "cuda":
        rate = torch.tensor(training.learning_rate, device=device)
        return torch.optim.AdamW(groups, lr=rate, fused=True, capturable=True)
    return torch.optim.AdamW(groups, lr=training.learning_rate, fused=device.type == "cpu")


def _views(
    model: Classifier,
    images: Images,
    training: Training,
    device: torch.device,
    generator: torch.Generator,
) -> Callable[[int], Iterator[Batch]]:
    """Passes in random order over augmented pixels; small images stay on the GPU for the whole training."""
    preprocessing = model.require_preprocessing()
    held = gpu_pixels(images, preprocessing, device)
    targets = images.targets.to(device)

    def view(pixels: Tensor) -> Tensor:
        if training.augmentation is not None:
            return augment(pixels, preprocessing.crop, training.augmentation, generator)
        return pixels if held is None else preprocessing.fit(pixels)

    def one_pass(seed: int) -> Iterator[Batch]:
        if held is not None:
            for positions in torch.split(order(len(images), seed).to(device), training.batch_size):
                yield Batch(view(held[positions]), targets[positions], positions)
            return
        for pixels, labels, positions in pixel_batches(images, preprocessing, training.batch_size, device, seed):
            yield Batch(view(pixels), labels, positions)

    return one_pass
