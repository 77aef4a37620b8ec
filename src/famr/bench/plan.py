"""What a bench runs, and what it refuses before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, get_args

import torch

from famr.baselines import Baseline, SisaRemoval
from famr.baselines.base import request_kind
from famr.bench.methods import BenchMethod
from famr.bench.results import CellKey
from famr.bench.scoring import CALIBRATION_STRIDE, MIA_IMAGES, RETAINED_SCORED, calibration_and_scored
from famr.bench.tasks import Task
from famr.bench.tuning import tuning_variants
from famr.data import Data
from famr.data.splits import Splits, split
from famr.engine.devices import Precision, pick_device
from famr.errors import RequestError
from famr.models import Classifier
from famr.models.labels import require_same_labels
from famr.training.supervised import COMPILE_FROM_STEPS, Training


@dataclass(frozen=True, eq=False)
class Bench:
    """Methods × requests × seeds on one data set and one kind of model.

    Attributes:
        data: Training and test images.
        start: From a seed, the model that training of originals and retrained references starts from.
        training: How these are trained.
        methods: What is compared.
        tasks: The requests that are scored.
        seeds: One original each.
        tuning: Requests on which numbers are chosen; none of them is scored.
        trials: Variants of its numbers that a method may try on each tuning request; 1: its default numbers.
        tuning_seed: Seed of the original on which methods are tuned.
        original: A trained model; then there is one seed. None: one is trained for each seed.
        description: Data and model in words, for the records.
        leave_out_unserved: Whether a request that a method cannot serve is listed as such instead of refused.
        retry_failed: Whether failed cells are run again.
        shards: Of the ensemble that SISA needs.
        device: Name of the device.
        precision: Of methods and of scoring alike. None: bf16 on CUDA, fp32 elsewhere.
        seconds: Limit on the seconds of every method but retraining, SISA and FAMR. None: the longest that FAMR with
            its defaults takes on the tuning requests of the kind; no limit where nothing is tuned.
        retrained: Whether reference models are retrained; without them no gap is known.
        fine_tuned: Whether `start` returns trained weights, so that a proxy trains all of its layers.
    """

    data: Data
    start: Callable[[int], Classifier]
    training: Training
    methods: tuple[BenchMethod, ...]
    tasks: tuple[Task, ...]
    seeds: tuple[int, ...] = (0,)
    tuning: tuple[Task, ...] = ()
    trials: int = 1
    tuning_seed: int = 0
    original: Classifier | None = None
    description: Mapping[str, Any] = field(default_factory=dict)
    leave_out_unserved: bool = False
    retry_failed: bool = False
    shards: int = 5
    device: str = "auto"
    precision: Precision | None = None
    seconds: float | None = None
    retrained: bool = True
    fine_tuned: bool = False

    def __post_init__(self) -> None:
        for name, must, holds in (
            ("seeds", "different, and at least one", self.seeds and len(set(self.seeds)) == len(self.seeds)),
            ("tasks", "at least one", self.tasks),
            ("methods", "at least one", self.methods),
            ("trials", "at least 1", self.trials >= 1),
            ("shards", "at least 2", self.shards >= 2),
            ("seconds", "above 0, or None", self.seconds is None or self.seconds > 0),
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
        if both := [task.label for task in self.tuning if task.label in scored]:
            raise RequestError(
                "Methods may not be tuned on what they are scored on.", where=", ".join(both), fix="Tune on another."
            )

    @property
    def torch_device(self) -> torch.device:
        """Where it runs."""
        return pick_device(self.device)

    @property
    def run_precision(self) -> Precision:
        """The precision of everything but training."""
        return self.precision or ("bf16" if self.torch_device.type == "cuda" else "fp32")

    @property
    def compiles(self) -> bool:
        """Whether training on all images is compiled."""
        if self.training.compile is not None:
            return self.training.compile
        steps = self.training.epochs * (len(self.data.train) // self.training.batch_size)
        return self.torch_device.type == "cuda" and steps >= COMPILE_FROM_STEPS

    def variants(self, method: BenchMethod) -> list[Baseline]:
        """What is tried of a method before it is cut to the limit; its own numbers alone where nothing is tuned.

        Args:
            method: One of `methods`.
        """
        return tuning_variants(method.method, self.trials if self.tuning else 1)

    @property
    def tunes(self) -> bool:
        """Whether methods are tuned."""
        return bool(self.tuning) and self.trials > 1

    def tuning_of(self, kind: str) -> tuple[Task, ...]:
        """The tuning requests of a kind.

        Args:
            kind: `class` or `samples`.
        """
        return tuple(task for task in self.tuning if task.tuning_kind == kind)

    def settings(self) -> dict[str, Any]:
        """What all cells of a folder have in common, as recorded in bench.json."""
        return {
            **self.description,
            "training_images": len(self.data.train),
            "classes": len(self.data.labels),
            "training": asdict(self.training),
            "given_original": None if self.original is None else self.original.digest(),
            "trials": self.trials,
            "tuned_on": {
                kind: [task.label for task in self.tuning_of(kind)]
                for kind in dict.fromkeys(task.tuning_kind for task in self.tuning if self.tunes)
            },
            "tuning_seed": self.tuning_seed,
            "shards": self.shards,
            "seconds": self.seconds,
            "precision": self.run_precision,
            "shown_to_methods": f"1 of {CALIBRATION_STRIDE} held-out images; the others are scored",
            "retained_scored": RETAINED_SCORED,
            "mia_images": MIA_IMAGES,
        }

    def cells(self) -> list[CellKey]:
        """Every cell, in the order in which they are run."""
        return [CellKey(m.name, t.label, s) for s in self.seeds for t in self.tasks for m in self.methods]

    def split_tasks(self) -> dict[str, Splits]:
        """The sets of every request, scored or for tuning, by label."""
        return {task.label: split(self.data, task.request) for task in (*self.tasks, *self.tuning)}


def unserved_pairs(bench: Bench, splits: Mapping[str, Splits]) -> dict[tuple[str, str], str]:
    """Why a method cannot serve a request.

    Args:
        bench: What is to run.
        splits: The sets of its tasks.

    Returns:
        Reasons by method name and task label.
    """
    reasons = {}
    for task in bench.tasks:
        calibration, _ = calibration_and_scored(splits[task.label])
        for method in bench.methods:
            reason = method.method.refusal(request_kind(calibration))
            if reason is None and method.retrains and not bench.retrained:
                reason = "no models are retrained in this bench"
            if reason is None and method.retrains and len(bench.seeds) < 2:
                reason = "with one seed the retrained reference is this very model, and it has a row of its own"
            if reason is None and isinstance(method.method, SisaRemoval) and bench.original is not None:
                reason = "it needs models trained in shards, and one trained model was given"
            if reason is not None:
                reasons[method.name, task.label] = reason
    return reasons


def require_served(bench: Bench, splits: Mapping[str, Splits]) -> dict[tuple[str, str], str]:
    """Check that every method can serve every request.

    Args:
        bench: What is to run.
        splits: The sets of its tasks.

    Returns:
        The pairs that are left out, with the reason, where the bench leaves such pairs out.

    Raises:
        RequestError: A pair cannot be run, and the bench does not leave it out.
    """
    if bench.original is not None:
        for task_splits in splits.values():
            require_same_labels(bench.original, task_splits)
    unserved = unserved_pairs(bench, splits)
    if unserved and not bench.leave_out_unserved:
        lines = [f"{method} cannot serve {label}: {reason}." for (method, label), reason in unserved.items()]
        raise RequestError(
            " ".join(lines),
            where=f"{len(unserved)} of {len(bench.tasks) * len(bench.methods)} pairs of method and request",
            fix="Leave these methods or requests out, or pass --leave-out-unserved to list them as not served.",
        )
    return unserved
