"""`fit`: train or fine-tune a classifier with cross-entropy. Originals and retrained references come from it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from famr.data import Images
from famr.data.augmentation import Augmentation, augment
from famr.data.loaders import Batch, epoch_seed, training_batches
from famr.data.request import Request
from famr.data.transforms import Preprocessing
from famr.engine.devices import Precision, autocast, deterministic, pick_device
from famr.engine.finite import name_bad_images, require_finite_steps
from famr.errors import RequestError
from famr.metrics.tables import in_percent
from famr.models import Classifier
from famr.models.classifier import logits_of
from famr.models.layers import blank_image, trainable
from famr.optim.schedules import warmup_cosine
from famr.optim.state import load_optimiser_tensors, optimiser_tensors
from famr.runs.card import front_matter, loading, plain
from famr.runs.events import Step
from famr.runs.folder import environment, write_run
from famr.runs.resume import ResumeState
from famr.runs.training_record import ids_digest
from famr.training.steps import GradientSteps, adamw

COMPILE_FROM_STEPS = 5000
"""Compilation takes half a minute on a GPU and saves a few milliseconds a step: with fewer steps it does not pay."""
COMPILE_WARMUP = 3
"""Steps before one is recorded: a compiled network may still change in the second."""


@dataclass(frozen=True)
class Training:
    """AdamW with a linear warm-up and a cosine to zero.

    Attributes:
        epochs: Passes over the images.
        batch_size: Images a step; a shorter last batch of an epoch is left out.
        learning_rate: Peak learning rate.
        weight_decay: Decay of weights with more than one dimension; biases and normalisation do not decay.
        warmup_share: The share of all steps over which the learning rate rises from zero.
        label_smoothing: The share of the target's mass that is spread over all classes.
        gradient_clip: The largest norm of a step's gradient.
        augmentation: Random views of the images; None: the images as they are.
        precision: Precision of the network. None: bf16 on CUDA, fp32 elsewhere.
        compile: Whether the network is compiled; None: on CUDA, where there are enough steps for it to pay.
    """

    epochs: int = 10
    batch_size: int = 128
    learning_rate: float = 3e-4
    weight_decay: float = 0.05
    warmup_share: float = 0.1
    label_smoothing: float = 0.0
    gradient_clip: float = 1.0
    augmentation: Augmentation | None = field(default_factory=Augmentation)
    precision: Precision | None = None
    compile: bool | None = None

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

    def steps(self, images: int) -> int:
        """Steps of the whole training.

        Args:
            images: Number of training images.
        """
        return self.epochs * max(1, images // self.batch_size)


@dataclass(frozen=True)
class TrainingRow:
    """One epoch of training.

    Attributes:
        epoch: Its number, from 1.
        step: Steps so far.
        loss: Mean loss on the augmented images.
        accuracy: Accuracy on the augmented images.
        learning_rate: η of the last step.
        seconds: Time spent in steps so far.
    """

    epoch: int
    step: int
    loss: float
    accuracy: float
    learning_rate: float
    seconds: float


@dataclass(frozen=True, eq=False)
class Trained:
    """The outcome of `fit`.

    Attributes:
        model: The trained classifier.
        training: The settings.
        seed: Seed of every random draw.
        history: One row an epoch.
        device: Name of the device that trained it.
        precision: Precision of the forward passes.
        images_count: Number of training images.
        images_sha256: `ids_digest` of the training images.
        start_sha256: SHA-256 of the weights that training started from.
    """

    model: Classifier
    training: Training
    seed: int
    history: tuple[TrainingRow, ...]
    device: str
    precision: Precision
    images_count: int
    images_sha256: str
    start_sha256: str

    @property
    def seconds(self) -> float:
        """Time spent in training steps."""
        return self.history[-1].seconds

    def to_json(self) -> dict[str, Any]:
        """The records of run.json about the training."""
        return {
            "training": {**asdict(self.training), "precision": self.precision},
            "seed": self.seed,
            "device": self.device,
            "seconds": self.seconds,
            "start": {"weights_sha256": self.start_sha256},
        }

    def save(
        self,
        output_dir: str | Path,
        *,
        metrics: Mapping[str, Any] | None = None,
        data: Mapping[str, Any] | None = None,
        without: Request | None = None,
        left_out: Images | None = None,
        start: Mapping[str, Any] | None = None,
        overwrite: bool = False,
    ) -> Path:
        """Write a run folder that loads in the model's own library.

        Args:
            output_dir: The folder; it must not exist.
            metrics: Written as metrics.json; `test_accuracy` also into the model card.
            data: How the data was opened.
            without: The request whose images were left out of the training data.
            left_out: Those images.
            start: How the model that training started from is opened, as `famr.new_model` takes it, so that others can
                be trained alike; None: it is not recorded.
            overwrite: Replace a folder that famr wrote.

        Returns:
            The folder.
        """
        run = {
            **self.to_json(),
            "start": {**(start or {}), "weights_sha256": self.start_sha256},
            "without": None if without is None else without.to_json(),
            "images": {
                "count": self.images_count,
                "sha256": self.images_sha256,
                "left_out": None if left_out is None else {"count": len(left_out), "sha256": ids_digest(left_out.ids)},
            },
            "weights_sha256": self.model.digest(),
            "data": data,
            "environment": environment(self.device),
        }
        return write_run(
            Path(output_dir),
            self.model,
            "training",
            run,
            history=(asdict(row) for row in self.history),
            files={"metrics.json": metrics},
            card=trained_card(self, without, metrics),
            overwrite=overwrite,
        )


def trained_card(trained: Trained, without: Request | None, metrics: Mapping[str, Any] | None) -> str:
    """The model card: what was trained, and on what.

    Args:
        trained: The outcome of `fit`.
        without: The request whose images were left out of the training data.
        metrics: May hold `test_accuracy`.
    """
    unseen = f"It was trained without {plain(without.describe())}.\n" if without is not None else ""
    return "\n".join(
        [
            front_matter(trained.model, ["image-classification", "famr"]),
            f"# {plain(trained.model.architecture.name)}\n",
            f"Trained for {trained.training.epochs} epochs with cross-entropy, seed {trained.seed}.\n",
            unseen,
            f"Test accuracy: {in_percent('test_accuracy', (metrics or {}).get('test_accuracy'))}.\n",
            loading(trained.model),
        ]
    )


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
    """Train a copy of `model`; the model itself is not changed.

    Train on `splits.retain` for a reference that never saw the forget set.

    Args:
        model: The classifier to start from.
        images: The training set, with labels.
        training: The settings; None: `Training()`.
        seed: Seed of the order of the images and of their augmentation.
        device: Name of the device; None: the best available.
        resume_state: Saves the state of the training, and resumes it where an earlier process left a state.
        on_event: Called with each `Step` and each `TrainingRow`.

    Raises:
        RequestError: Images have no labels.
        NumericsError: The loss or a weight is not finite.
    """
    training = training or Training()
    chosen = pick_device(device or "auto")
    precision: Precision = training.precision or ("bf16" if chosen.type == "cuda" else "fp32")
    if not images.labelled:
        raise RequestError("Training needs a class for every image.", fix="Put the images into class folders.")
    state = None
    if resume_state is not None:
        settings = {"training": asdict(training), "precision": precision, "seed": seed, "device": str(chosen)}
        state = resume_state.begin(start=model.digest(), images=images.ids, targets=images.targets.tolist(), **settings)
    trained = model.copy()
    trained.module.to(chosen).train()
    with deterministic(seed), name_bad_images(images.ids):
        run = _Run(trained, images, training, precision, seed, chosen)
        history = [] if state is None else [TrainingRow(**row) for row in state.facts["history"]]
        if state is not None:
            run.load_state(state.tensors)
            run.steps.taken = history[-1].step
        for row in run.epochs(history, on_event):
            history.append(row)
            if on_event is not None:
                on_event(row)
            if resume_state is not None and resume_state.due():
                resume_state.keep(run.state(), {"history": [asdict(done) for done in history]})
    trained.module.cpu().eval().zero_grad()
    return Trained(
        model=trained,
        training=training,
        seed=seed,
        history=tuple(history),
        device=str(chosen),
        precision=precision,
        images_count=len(images),
        images_sha256=ids_digest(images.ids),
        start_sha256=model.digest(),
    )


@dataclass(frozen=True, eq=False)
class TrainingLoss:
    """Cross-entropy, and the share of correct predictions.

    An object of its own, and not a method of the run: recorded steps hold their loss, and a run that is held by its own
    steps would keep their memory until the garbage collector comes.

    Attributes:
        network: The module, compiled or in half precision.
        preprocessing: Of the model.
        training: The settings.
        precision: Of the forward pass under autocast; fp32 for a network that rounds by itself.
        device: Of the images.
    """

    network: Callable[[Tensor], Any]
    preprocessing: Preprocessing
    training: Training
    precision: Precision
    device: torch.device

    def __call__(self, images: Tensor, labels: Tensor) -> Tensor:
        """Both, of a batch.

        Args:
            images: Pixels as stored.
            labels: Classes.
        """
        normalised = self.preprocessing.normalise(images)
        with autocast(self.device, self.precision):
            logits = logits_of(self.network(normalised)).float()
        loss = F.cross_entropy(logits, labels, label_smoothing=self.training.label_smoothing)
        hits = (logits.detach().argmax(dim=-1) == labels).float().mean()
        return torch.stack([loss, hits])


class _Run:
    """A training on its device."""

    def __init__(
        self,
        model: Classifier,
        images: Images,
        training: Training,
        precision: Precision,
        seed: int,
        device: torch.device,
    ) -> None:
        self._model, self._images, self._training, self._seed = model, images, training, seed
        self._device = device
        total = training.steps(len(images))
        pays = device.type == "cuda" and total >= COMPILE_FROM_STEPS
        compiled = pays if training.compile is None else training.compile
        network: Callable[[Tensor], Any] = torch.compile(model.module) if compiled else model.module
        if precision == "bf16" and not compiled:
            from famr.engine.bf16 import Bf16Network

            network, precision = Bf16Network(model.module, blank_image(model, 2)), "fp32"
        self._loss = TrainingLoss(network, model.require_preprocessing(), training, precision, device)
        self._views = torch.Generator(device).manual_seed(seed)
        self.steps = GradientSteps(
            trainable(model.module),
            adamw(model.module, training.learning_rate, training.weight_decay, device),
            lambda step: training.learning_rate * warmup_cosine(step, total, training.warmup_share),
            device,
            clip=training.gradient_clip,
            warmup=COMPILE_WARMUP if compiled else 1,
        )

    def epochs(
        self, history: list[TrainingRow], on_event: Callable[[Step | TrainingRow], None] | None
    ) -> Iterator[TrainingRow]:
        """Train from the end of `history` on; a row after each epoch."""
        batch_size = min(self._training.batch_size, len(self._images))
        seconds = history[-1].seconds if history else 0.0
        batches = self._batches()
        for epoch in range(len(history) + 1, self._training.epochs + 1):
            start = time.perf_counter()
            values: list[Tensor] = []
            positions: list[Tensor] = []
            for batch in batches(epoch_seed(self._seed, epoch)):
                if len(batch.labels) < batch_size:
                    continue  # a short last batch would upset BatchNorm, and be compiled again
                rate = self.steps.rate
                values.append(self.steps.take(self._loss, (batch.images, batch.labels.to(self._device))))
                positions.append(batch.positions)
                if on_event is not None:
                    on_event(Step(epoch, self.steps.taken))
            losses, hits = torch.stack(values).unbind(dim=-1)
            mean_loss, accuracy = float(losses.mean()), float(hits.mean())
            seconds += time.perf_counter() - start
            require_finite_steps(list(losses), positions, self._model.module, epoch)
            yield TrainingRow(epoch, self.steps.taken, mean_loss, accuracy, rate, seconds)

    def _batches(self) -> Callable[[int | None], Iterator[Batch]]:
        preprocessing, training = self._model.require_preprocessing(), self._training
        view = None
        if training.augmentation is not None:
            view = partial(augment, size=preprocessing.crop, augmentation=training.augmentation, generator=self._views)
        return training_batches(self._images, preprocessing, training.batch_size, self._device, view)

    def state(self) -> dict[str, Tensor]:
        """Everything that training changes: weights, statistics, optimiser state, and random number generators."""
        generators = {"random.augmentation": self._views.get_state(), "random.cpu": torch.get_rng_state()}
        if torch.cuda.is_available():
            generators["random.cuda"] = torch.cuda.get_rng_state()
        weights = {f"module.{name}": tensor for name, tensor in self._model.module.state_dict().items()}
        return {**weights, **generators, **optimiser_tensors(self.steps.optimiser)}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of `state`."""
        weights = {name.removeprefix("module."): t for name, t in tensors.items() if name.startswith("module.")}
        self._model.module.load_state_dict(weights)
        load_optimiser_tensors(self.steps.optimiser, tensors)
        self._views.set_state(tensors["random.augmentation"])
        torch.set_rng_state(tensors["random.cpu"])
        if "random.cuda" in tensors:
            torch.cuda.set_rng_state(tensors["random.cuda"])
