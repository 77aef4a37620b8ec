"""A proxy: a model that never saw what is to be forgotten, trained for a fraction of what retraining takes.

Its early layers are the original's, frozen, and computed once an image (the engine's prefix cache). Its late layers
begin where the original's training began, and are trained on images that the proxy may see. What it confuses an unseen
class with comes from generalisation, as in a retrained model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from famr.data import Images
from famr.data.loaders import Batch, epoch_seed
from famr.engine.base import Engine, Session
from famr.engine.devices import Precision, deterministic
from famr.engine.finite import name_bad_images, require_finite_steps
from famr.errors import RequestError
from famr.losses.objective import Reduction
from famr.models import Classifier
from famr.optim.schedules import set_learning_rate, warmup_cosine
from famr.proxies.late import late_layers, late_state, with_late_state
from famr.proxies.recipe import ProxyRecipe
from famr.training import Training
from famr.training.steps import adamw

FEWEST_A_CLASS = 20
"""Training images a class, in the mean, below which a proxy learns too little to say anything about other images."""


@dataclass(frozen=True, eq=False)
class CrossEntropy:
    """The training loss of a session's network.

    Attributes:
        session: Computes the logits.
        label_smoothing: The share of the target's mass that is spread over all classes.
        reduction: The loss of a batch is a mean over its images.
    """

    session: Session
    label_smoothing: float = 0.0
    reduction: Reduction = "mean"

    def __call__(self, batch: Batch) -> Tensor:
        """The loss of a batch, with a graph.

        Args:
            batch: With labels.
        """
        logits = self.session.logits(batch)
        return F.cross_entropy(logits, batch.labels.to(logits.device), label_smoothing=self.label_smoothing)


class ProxyTrainer:
    """Trains proxies of one model, one after the other; they share the activations of the early layers.

    Args:
        session: Its network has the original's early layers.
        images: The training images, with labels.
        training: Settings of a proxy's training.
        names: Parameters of the late layers.
        start: The tensors with which every proxy starts.

    Attributes:
        session: Its network is the proxy that was trained last.
        names: Parameters of the late layers.
    """

    def __init__(
        self, session: Session, images: Images, training: Training, names: tuple[str, ...], start: dict[str, Tensor]
    ) -> None:
        self.session, self.names = session, names
        self._images, self._training, self._start = images, training, start
        session.train_only(frozenset(names))
        self._size = min(training.batch_size, len(images))
        self._batches = session.batches(images, self._size)

    def train(
        self, keep: Tensor | None = None, *, seed: int = 0, on_step: Callable[[int], None] | None = None
    ) -> dict[str, Tensor]:
        """Train a proxy from the start.

        Args:
            keep: Which images it may see, (images,); None: all.
            seed: Of the order of the images.
            on_step: Called after each step with the number of steps so far.

        Returns:
            Its late layers, on the CPU.

        Raises:
            RequestError: It may see no image.
            NumericsError: The loss or a weight is not finite.
        """
        training, session = self._training, self.session
        module, seen = session.model.module, len(self._images) if keep is None else int(keep.sum())
        if not seen:
            raise RequestError("A proxy has no image to train on.", where="proxies", fix="Use fewer proxies, or none.")
        self._restart(module)
        size = min(self._size, seen)
        optimiser = adamw(module, training.learning_rate, training.weight_decay, session.device)
        loss, total, taken = CrossEntropy(session, training.label_smoothing), training.steps(seen), 0

        def step(batch: Batch) -> Tensor:
            value, gradient = session.gradient(loss, batch)
            for parameter, g in zip(session.parameters, gradient, strict=True):
                parameter.grad = g
            nn.utils.clip_grad_norm_(session.parameters, training.gradient_clip)
            optimiser.step()
            return value

        with deterministic(seed), name_bad_images(self._images.ids):
            _train_mode(module, self.names)
            for epoch in range(1, training.epochs + 1):
                losses: list[Tensor] = []
                positions: list[Tensor] = []
                for batch in full_batches(self._batches(epoch_seed(seed, epoch)), keep, size):
                    rate = training.learning_rate * warmup_cosine(taken, total, training.warmup_share)
                    set_learning_rate(optimiser, rate)
                    losses.append(session.run(step, batch))
                    positions.append(batch.positions)
                    taken += 1
                    if on_step is not None:
                        on_step(taken)
                require_finite_steps(losses, positions, module, epoch)
            module.eval()
        return {name: tensor.detach().cpu().clone() for name, tensor in late_state(module, self.names).items()}

    @torch.no_grad()
    def _restart(self, module: nn.Module) -> None:
        own = late_state(module, self.names)
        for name, tensor in self._start.items():
            own[name].copy_(tensor)


@contextmanager
def proxy_trainer(
    original: Classifier, recipe: ProxyRecipe, images: Images, *, engine: Engine, seed: int = 0
) -> Iterator[ProxyTrainer]:
    """A trainer for proxies of a model, for as long as the context lasts; the model is not changed.

    Args:
        original: Its early layers are those of all proxies.
        recipe: How proxies are trained.
        images: The training images.
        engine: Computes the steps.
        seed: Of late layers that start at random.

    Yields:
        The trainer.

    Raises:
        RequestError: There are no labels, or too few images.
        CheckpointError: The recipe's start is of another architecture.
    """
    if (why := too_few_images(images)) is not None:
        raise RequestError(
            f"A proxy cannot be trained: {why}.",
            where=f"{len(images)} images",
            fix="Give the data the model was trained on, or use --effort quick.",
        )
    names = late_layers(original, recipe.late_share)
    start = late_state(recipe.start_of(original, names, seed).module, names)
    hybrid = with_late_state(original, start, "the start of the training")  # refuses another architecture
    training = recipe.short_training
    precision: Precision = training.precision or ("bf16" if engine.device.type == "cuda" else "fp32")
    with engine.session(hybrid, precision, min(training.batch_size, len(images))) as session:
        yield ProxyTrainer(session, images, training, names, {name: t.detach().clone() for name, t in start.items()})


def too_few_images(images: Images) -> str | None:
    """Why images do not suffice to train a proxy; None where they do.

    Args:
        images: The training images.
    """
    if not images.labelled:
        return "the training images have no labels"
    classes = len(images.class_counts())
    if len(images) < FEWEST_A_CLASS * classes or classes < 2:
        return f"{len(images)} training images of {classes} classes are too few, it takes {FEWEST_A_CLASS} a class"
    return None


def full_batches(batches: Iterable[Batch], keep: Tensor | None, size: int) -> Iterator[Batch]:
    """Batches of one size with the kept images alone; what is left at the end is left out, as BatchNorm needs many.

    Args:
        batches: One pass.
        keep: Which images of the set are kept, (images,); None: all.
        size: Images of each batch.

    Yields:
        Each batch.

    >>> row = torch.arange(6)
    >>> passes = [Batch(row[:4], row[:4], row[:4]), Batch(row[4:], row[4:], row[4:])]
    >>> [batch.positions.tolist() for batch in full_batches(passes, row != 1, size=2)]
    [[0, 2], [3, 4]]
    """
    waiting: Batch | None = None
    for batch in batches:
        kept = batch if keep is None else Batch(*(part[keep[batch.positions.cpu()].to(part.device)] for part in batch))
        waiting = kept if waiting is None else Batch(*(torch.cat(pair) for pair in zip(waiting, kept, strict=True)))
        while len(waiting.positions) >= size:
            yield Batch(*(part[:size] for part in waiting))
            waiting = Batch(*(part[size:] for part in waiting))


def _train_mode(module: nn.Module, names: tuple[str, ...]) -> None:
    """Training mode for the modules that own trained parameters, so that BatchNorm follows the new weights."""
    for owner in {name.rpartition(".")[0] for name in names}:
        module.get_submodule(owner).train()
