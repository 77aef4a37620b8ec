"""What a bench is told, and what it refuses before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, get_args

import torch

from famr.baselines import Baseline as Alternative
from famr.baselines import SisaRemoval
from famr.baselines.base import request_kind as kind_of
from famr.bench.contenders import Contender
from famr.bench.looks import MIA_IMAGES, RETAINED_SCORED, SHOWN_TO_METHODS, TUNING_SCORED, apart
from famr.bench.records import Key
from famr.bench.tasks import Task, tuned_on
from famr.bench.tuning import variants
from famr.data import Data
from famr.data.splits import Splits, split
from famr.engine.devices import Precision, pick_device
from famr.errors import RequestError
from famr.models import Classifier
from famr.models.labels import require_same_labels
from famr.training.supervised import COMPILE_FROM_STEPS, Training


@dataclass(frozen=True, eq=False)
class Bench:
    """Methods × requests × seeds on one data set and one kind of model."""

    data: Data
    start: Callable[[int], Classifier]
    """What originals and retrained references start from, made out of a seed."""
    training: Training
    contenders: tuple[Contender, ...]
    tasks: tuple[Task, ...]
    seeds: tuple[int, ...] = (0,)
    tuning: tuple[Task, ...] = ()
    """Requests on which numbers are chosen; none of them is scored."""
    trials: int = 1
    """Runs a method may use for tuning; with 1 its default numbers are taken as they are."""
    tuning_seed: int = 0
    original: Classifier | None = None
    """A model that is trained already; then there is one seed. None: one is trained for each seed."""
    told: Mapping[str, Any] = field(default_factory=dict)
    """Data and model in words, for the records."""
    leave_out_unserved: bool = False
    retry_failed: bool = False
    shards: int = 5
    """Of the ensemble that SISA needs."""
    device: str = "auto"
    precision: Precision | None = None
    """Of methods and of measuring alike. None: bf16 on CUDA, fp32 elsewhere."""
    most_epochs: int | None = None
    """Methods that go over the retained images do so at most so often; None: as often as their own numbers say."""
    retrained: bool = True
    """Whether retrained models are made to compare with; without them no gap is known, so nothing can be tuned."""

    def __post_init__(self) -> None:
        for name, must, holds in (
            ("seeds", "different, and at least one", self.seeds and len(set(self.seeds)) == len(self.seeds)),
            ("tasks", "at least one", self.tasks),
            ("contenders", "at least one", self.contenders),
            ("trials", "at least 1", self.trials >= 1),
            ("shards", "at least 2", self.shards >= 2),
            ("most_epochs", "at least 1, or None", self.most_epochs is None or self.most_epochs >= 1),
            ("retrained", "True where methods are tuned", self.retrained or self.trials == 1 or not self.tuning),
            ("precision", "fp32, bf16 or None", self.precision in (None, *get_args(Precision))),
        ):
            if not holds:
                raise RequestError(f"`{name}` must be {must}.", where="bench", fix="Check the call.")
        if self.original is not None and (len(self.seeds) > 1 or self.tuning_seed != self.seeds[0]):
            raise RequestError(
                "One trained model is one seed.",
                where=f"{len(self.seeds)} seeds",
                fix="Give one seed, or no --model, so that the bench trains an original for each.",
            )
        scored = {task.label for task in self.tasks}
        if twice := [task.label for task in self.tuning if task.label in scored]:
            raise RequestError(
                "Methods may not be tuned on what they are scored on.", where=", ".join(twice), fix="Tune on another."
            )

    @property
    def place(self) -> torch.device:
        """Where it runs."""
        return pick_device(self.device)

    @property
    def precise(self) -> Precision:
        """The precision of everything but training."""
        return self.precision or ("bf16" if self.place.type == "cuda" else "fp32")

    @property
    def compiles(self) -> bool:
        """Whether a training on all images is compiled."""
        if self.training.compile is not None:
            return self.training.compile
        steps = self.training.epochs * (len(self.data.train) // self.training.batch_size)
        return self.place.type == "cuda" and steps >= COMPILE_FROM_STEPS

    def variants(self, contender: Contender) -> list[Alternative]:
        """What is tried of a method; itself alone where there is nothing to choose, or nothing to choose on."""
        return variants(contender.method, self.trials if self.tuning else 1, self.most_epochs)

    def settings(self) -> dict[str, Any]:
        """What all cells of a folder have in common."""
        return {
            **self.told,
            "training_images": len(self.data.train),
            "classes": len(self.data.labels),
            "training": asdict(self.training),
            "given_original": None if self.original is None else self.original.digest(),
            "trials": self.trials,
            "tuned_on": {tuned_on(task): task.label for task in self.tuning if self.trials > 1},
            "tuning_seed": self.tuning_seed,
            "shards": self.shards,
            "most_epochs": self.most_epochs,
            "precision": self.precise,
            "shown_to_methods": f"1 of {SHOWN_TO_METHODS} held-out images; the others are scored",
            "retained_scored": RETAINED_SCORED,
            "tuning_scored": TUNING_SCORED,
            "mia_images": MIA_IMAGES,
        }

    def cells(self) -> list[Key]:
        """Every cell, in the order it is run."""
        return [Key(c.name, t.label, s) for s in self.seeds for t in self.tasks for c in self.contenders]


def splits_of(bench: Bench) -> dict[str, Splits]:
    """The sets of every request, scored or for tuning."""
    return {task.label: split(bench.data, task.request) for task in (*bench.tasks, *bench.tuning)}


def refusals(bench: Bench, splits: Mapping[str, Splits]) -> dict[tuple[str, str], str]:
    """Why a method cannot serve a request, by method and label; asked of all pairs before anything runs."""
    found = {}
    for task in bench.tasks:
        seen, _ = apart(splits[task.label])
        for contender in bench.contenders:
            reason = contender.method.refusal(kind_of(seen))
            if reason is None and contender.retrains and not bench.retrained:
                reason = "no models are retrained in this bench"
            if reason is None and contender.retrains and len(bench.seeds) < 2:
                reason = "with one seed the retrained reference is this very model, and it has a row of its own"
            if reason is None and isinstance(contender.method, SisaRemoval) and bench.original is not None:
                reason = "it needs models trained in shards, and one trained model was given"
            if reason is not None:
                found[contender.name, task.label] = reason
    return found


def require_served(bench: Bench, splits: Mapping[str, Splits]) -> dict[tuple[str, str], str]:
    """Refuse a bench with a pair that cannot be run, unless such pairs are to be left out and shown as such."""
    if bench.original is not None:
        for found in splits.values():
            require_same_labels(bench.original, found)
    unserved = refusals(bench, splits)
    if unserved and not bench.leave_out_unserved:
        told = [f"{method} cannot serve {label}: {reason}." for (method, label), reason in unserved.items()]
        raise RequestError(
            " ".join(told),
            where=f"{len(unserved)} of {len(bench.tasks) * len(bench.contenders)} pairs of method and request",
            fix="Leave these methods or requests out, or say --leave-out-unserved to have them shown as not served.",
        )
    return unserved
