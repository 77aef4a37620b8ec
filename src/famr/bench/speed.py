"""`famr bench speed`: what this machine allows, what a plain loop reaches, and what `famr.forget` reaches, in one run.

A stage that fails, as where memory runs out, is recorded with its reason, and the others go on. Only ratios within a
run are to be believed: the machine, its load and its mood are the same for both sides there.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, get_args

import torch

from famr.bench.speed_ceiling import ceiling
from famr.bench.speed_fresh import first_calls
from famr.bench.speed_growth import growth_with_data, growth_with_forget
from famr.bench.speed_loops import SETTLING, compare_loops, late_layers, numbers
from famr.bench.speed_memory import compare_memory, peak_of_processes, peak_on_cuda
from famr.bench.speed_subject import (
    LITTLE,
    PASS,
    Named,
    forgetting,
    forward_flops,
    made,
    parameters_of,
    synthetic,
)
from famr.bench.speed_subject import size_named as size_named
from famr.config import FAMR
from famr.engine.devices import Precision, pick_device
from famr.engine.kernels.compiling import in_use
from famr.errors import RequestError
from famr.models import Classifier
from famr.runs.folder import environment
from famr.training import Training, fit

STAGES = ("ceiling", "retraining", "loops", "fresh", "memory", "growth", "alternatives")
OF_A_MODEL = ("retraining", "loops", "fresh", "memory", "growth")
RETRAINING_EPOCHS = 4
RETAINED_FOR_EACH = 4
"""Retained images for each image to forget, in the stages that look at some."""
SMALL_BATCH = {"cuda": 50, "mps": 50, "cpu": 10}
"""The batch with which growth is measured, so that two decades of images take seconds."""


@dataclass(frozen=True)
class Plan:
    """What is to be timed."""

    models: tuple[Named, ...]
    images: int = 500
    epochs: int = 10
    batch: int = 250
    data_images: int = 50_000
    """The images that a retraining would go over."""
    repeats: int = 3
    seed: int = 0
    stages: tuple[str, ...] = STAGES[:-1]
    device: str = "auto"
    precision: Precision | None = None

    def __post_init__(self) -> None:
        for name in ("images", "epochs", "batch", "data_images", "repeats"):
            if getattr(self, name) < 1:
                raise RequestError(f"`{name}` must be at least 1, got {getattr(self, name)!r}.", where="bench speed")
        if unknown := [name for name in self.stages if name not in STAGES] or not self.stages:
            raise RequestError(
                f"There is no stage {unknown}.", where="--stages", fix=f"Use some of: {', '.join(STAGES)}."
            )
        if self.precision not in (None, *get_args(Precision)):
            raise RequestError(f"`precision` must be fp32 or bf16, got {self.precision!r}.", where="--precision")

    @property
    def place(self) -> torch.device:
        """The device it names."""
        return pick_device(self.device)

    @property
    def settled_precision(self) -> Precision:
        """bf16 on CUDA, fp32 elsewhere, where nothing was said."""
        return self.precision or ("bf16" if self.place.type == "cuda" else "fp32")

    def settings(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "images": self.images,
            "epochs": self.epochs,
            "batch": self.batch,
            "data_images": self.data_images,
            "repeats": self.repeats,
            "seed": self.seed,
            "stages": list(self.stages),
            "precision": self.settled_precision,
        }


def default_sizes(device: torch.device) -> tuple[str, ...]:
    """Three of the paper's networks on a GPU; elsewhere one that takes seconds."""
    return ("Ti", "B", "L") if device.type == "cuda" else (LITTLE,)


def run_speed(
    plan: Plan,
    say: Callable[[str], None],
    keep: Callable[[Mapping[str, Any]], None],
    begun: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Every stage in turn; `keep` gets all that was found so far after each of them.

    `begun`: what was kept of the same plan. A network counts as done when all its stages are, as they follow from each
    other; of one that is not, none is taken over.
    """
    place = plan.place
    content: dict[str, Any] = {
        "benchmark": "speed",
        "settings": plan.settings(),
        "environment": environment(str(place)),
        "models": [],
        "stages": [],
    }
    taken_over = [] if begun is None else _whole(plan, content, begun)

    def stage(name: str, model: str | None, work: Callable[[], dict[str, Any]]) -> None:
        if name not in plan.stages:
            return
        if known := next((each for each in taken_over if (each["stage"], each["model"]) == (name, model)), None):
            content["stages"].append(known)
            return
        say(f"{name}{'' if model is None else f', {model}'} …")
        content["stages"].append(recorded(name, model, work))
        last = content["stages"][-1]
        say(f"  {last['seconds']:.1f} s{'' if 'error' not in last else ': failed: ' + last['error']}")
        keep(content)

    def rate() -> float | None:
        return next((each["result"]["tflops"] for each in done(content, "ceiling")), None)

    subjects = []
    if any(name in plan.stages for name in OF_A_MODEL):
        for named in plan.models:  # before anything is timed: a name that nobody knows ends the bench at once
            model = made(named, plan.seed)
            content["models"].append(facts(named, model))
            subjects.append(Subject(named, model, plan))
    stage("ceiling", None, lambda: ceiling(place, plan.settled_precision))
    while subjects:
        subject = subjects.pop(0)  # and is gone when its stages are done
        stage("retraining", subject.named.name, subject.retraining)
        stage("loops", subject.named.name, lambda: subject.loops(rate()))  # noqa: B023
        stage("fresh", subject.named.name, subject.fresh)
        stage("memory", subject.named.name, subject.memory)
        stage("growth", subject.named.name, subject.growth)
    if "alternatives" in plan.stages:
        from famr.bench.speed_alternatives import alternatives

        stage("alternatives", None, lambda: alternatives(place, plan.seed, plan.repeats, say))
    return content


def _whole(plan: Plan, now: Mapping[str, Any], begun: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The stages of an earlier run that need not be run again; one of another plan or machine is refused."""
    then = {name: begun.get(name) for name in ("settings", "environment")}
    known: list[dict[str, Any]] = list(begun.get("stages") or [])
    names = {each.get("model") for each in known} - {None}
    changed = [name for name, value in then.items() if value != json.loads(json.dumps(now[name]))]
    if changed or not names <= {named.name for named in plan.models}:
        raise RequestError(
            f"What was begun here is another bench: it differs in {', '.join(changed) or 'its networks'}.",
            where="--resume",
            fix="Give the same command as before, or say --overwrite to begin anew.",
        )
    due = {name for name in OF_A_MODEL if name in plan.stages}
    finished = {name for name in names if due <= {each["stage"] for each in known if each["model"] == name}}
    return [each for each in known if each["model"] is None or each["model"] in finished]


def done(content: Mapping[str, Any], stage: str) -> list[dict[str, Any]]:
    """The records of a stage that did not fail."""
    return [each for each in content["stages"] if each["stage"] == stage and "error" not in each]


def recorded(name: str, model: str | None, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a stage found, or why it failed; and the memory of a GPU is free again."""
    record: dict[str, Any] = {"stage": name, "model": model}
    begun = time.perf_counter()
    try:
        record["result"] = work()
    except Exception as error:  # the next stage may well succeed
        first = (str(error).splitlines() or ["no message"])[0]
        record["error"] = f"{type(error).__name__}: {first}"
    record["seconds"] = time.perf_counter() - begun
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return record


def facts(named: Named, model: Classifier) -> dict[str, Any]:
    """What is known of a network before it runs."""
    flops = forward_flops(model)
    return {
        **named.to_json(),
        "weights": parameters_of(model.module),
        "image_side": list(model.require_preprocessing().crop),
        "forward_flops": flops,
        "sample_pass_flops": PASS * flops,
    }


SMALL = 10_000_000
"""Weights of a network below which it is called small."""


class Subject:
    """A network and its images, through the stages; each stage may run without the others."""

    def __init__(self, named: Named, model: Classifier, plan: Plan) -> None:
        self.named, self.original, self._plan = named, model, plan
        self._flops = PASS * forward_flops(model)
        self._data = synthetic(model, plan.images, RETAINED_FOR_EACH * plan.images, plan.seed)

    @property
    def is_small(self) -> bool:
        """Whether it can take large steps."""
        return parameters_of(self.original.module) < SMALL

    def retraining(self) -> dict[str, Any]:
        """Some epochs of `fit` on a few images; an epoch over all of the data follows from the seconds of a step."""
        plan, images = self._plan, self._data.train
        batch = min(plan.batch, len(images))
        training = Training(
            epochs=RETRAINING_EPOCHS,
            batch_size=batch,
            learning_rate=1e-3 if self.is_small else 3e-4,
            augmentation=None,
            precision=plan.settled_precision,
            compile=False,
        )
        trained = fit(self.original, images, training, seed=plan.seed, device=str(plan.place))
        self.original = trained.model
        first, last = trained.history[0], trained.history[-1]
        step = (last.seconds - first.seconds) / (last.step - first.step)
        return {
            "step": step,
            "steps_measured": last.step - first.step,
            "batch": batch,
            "data_images": plan.data_images,
            "epoch_extrapolated": step * plan.data_images / batch,
            "compiled": False,
            "accuracy": last.accuracy,
        }

    def loops(self, tflops: float | None) -> dict[str, Any]:
        """Both loops on the same images, and how near they come to the floor."""
        plan = self._plan
        method = numbers(plan.epochs, plan.batch, plan.settled_precision)
        if self.is_small:  # with smaller steps it would stop half-way, where answers are near ties
            method = replace(method, learning_rate=FAMR.paper().settled_rate)
        rest = (self.original, forgetting(self._data), method, plan.seed, plan.place, plan.repeats)
        found = {**compare_loops(*rest), "late": late_layers(*rest), "kernels": in_use()}
        found["learning_rate"] = method.settled_rate
        if tflops is None:
            return {**found, "floor": None}
        read = PASS * forward_flops(self.original, found["first_token"])
        for name, flops in (("ours", read), ("plain", self._flops)):
            rate = found["sample_passes"] * flops / (found[name]["step"] * found["steps"])
            found[name] |= {"sample_pass_flops": flops, "share_of_ceiling": rate / (tflops * 1e12)}
        return {**found, "floor": found["sample_passes"] * self._flops / (tflops * 1e12)}

    def fresh(self) -> dict[str, Any]:
        """First calls, each of a process of its own."""
        return first_calls(self._task(self._plan.epochs), self._plan.repeats)

    def _task(self, epochs: int) -> dict[str, Any]:
        """What a process of its own is told."""
        plan = self._plan
        return {
            "model": self.named.to_json(),
            "images": plan.images,
            "epochs": epochs,
            "batch": plan.batch,
            "precision": plan.settled_precision,
            "seed": plan.seed,
            "threads": torch.get_num_threads(),
            "device": str(plan.place),
        }

    def memory(self) -> dict[str, Any]:
        """Peak memory of fine-tuning, and of ours."""
        plan = self._plan
        weights = 4 * parameters_of(self.original.module)
        if plan.place.type == "cuda":
            method = numbers(plan.epochs, plan.batch, plan.settled_precision)
            rest = (self.original, forgetting(self._data), method, plan.seed, plan.place)
            return compare_memory(peak_on_cuda("fine-tuning", *rest), peak_on_cuda("ours", *rest), weights)
        task = self._task(min(2, plan.epochs))
        fine_tuning = peak_of_processes("fine-tuning", task, plan.repeats)
        return compare_memory(fine_tuning, peak_of_processes("ours", task, plan.repeats), weights)

    def growth(self) -> dict[str, Any]:
        """With what is forgotten, and with what is not."""
        plan = self._plan
        batch = min(SMALL_BATCH[plan.place.type], plan.batch)
        settling = numbers(SETTLING + 2, batch, plan.settled_precision)
        short = numbers(2, plan.batch, plan.settled_precision)
        where = (plan.seed, plan.place)
        repeats = 1 if plan.place.type == "cuda" else plan.repeats  # a GPU has no other work beside
        return {
            "with_forget": growth_with_forget(self.original, settling, *where, repeats),
            "with_data": growth_with_data(self.original, plan.images, short, *where, plan.repeats),
        }
