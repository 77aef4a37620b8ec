"""Shadow models for `famr audit`: the run's own training and unlearning, read from its records and done again."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from famr.audit.shadow_logits import ShadowLogits, train_shadow_logits
from famr.audit.shadows import Method, Setting, ShadowDone
from famr.cli.commands import OpenRun
from famr.cli.printing import say
from famr.config import FAMR
from famr.data import Images, open_data
from famr.data.augmentation import Augmentation
from famr.errors import CheckpointError, RequestError
from famr.models import Classifier, new_model
from famr.storage.digests import COMPLETE
from famr.training import Training
from famr.unlearn.forget import forget
from famr.unlearn.history import Monitor

SCRATCH = "scratch"


@dataclass(frozen=True)
class Shadowing:
    """How many shadow models in all, what their training starts from, and where they are kept."""

    count: int
    start: str | None
    cache: Path
    quiet: bool = False


def shadows_of(opened: OpenRun, asked: Shadowing, original: str | None, seed: int, device: str) -> ShadowLogits:
    """Train what the cache does not hold, and say so shadow by shadow."""
    if opened.original is None:
        raise CheckpointError("Shadow models are trained as the original was, and it is not there.", fix="--original")
    here = asked.cache.resolve()
    if sealed := next((folder for folder in (here, *here.parents) if (folder / COMPLETE).is_file()), None):
        raise RequestError("The cache lies inside a finished run.", where=str(sealed), fix="Name a folder outside.")
    training = recorded_training(Path(original or opened.record["original"]["model"]))

    def on_shadow(done: ShadowDone) -> None:
        if not asked.quiet:
            say(f"shadow model {done.number + 1}: {'found' if done.cached else f'trained in {done.seconds:.1f} s'}")

    start, splits = _start(opened.original, asked.start), opened.splits
    return train_shadow_logits(
        Setting(start, splits.forget, splits.retain, training=training, seed=seed),
        _method(opened, device),
        asked.count,
        asked.cache,
        device=device,
        on_shadow=on_shadow,
    )


def recorded_training(original: Path) -> Training:
    """How a run folder says that its model was trained."""
    try:
        told = json.loads((original / "training/run.json").read_text(encoding="utf-8"))["training"]
        augmentation = None if told["augmentation"] is None else Augmentation(**told["augmentation"])
        return Training(**{**told, "augmentation": augmentation})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            "There is no readable record of how the original was trained.",
            where=str(original / "training/run.json"),
            fix="Shadow models take an original that `famr train` wrote; without --shadows the audit needs no record.",
        ) from error


def _start(original: Classifier, given: str | None) -> Callable[[int], Classifier]:
    """What each shadow's training starts from; nobody may guess it."""
    if given is None:
        raise RequestError(
            "The record does not say what the original's training started from.",
            where="--shadow-start",
            fix=f"--shadow-start {SCRATCH} for random weights, or the checkpoint that was fine-tuned.",
        )
    labels = original.labels or ()

    def drawn(seed: int) -> Classifier:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return replace(original, module=original.architecture.build(len(labels)))

    return drawn if given == SCRATCH else lambda seed: new_model(given, labels, seed=seed)


def _method(opened: OpenRun, device: str) -> Method:
    """The run's method with what it settled on, for the same request."""
    name = opened.record["method"]["name"]
    if name != "FAMR":
        raise RequestError(
            f"Shadow models repeat the run's method, and {name!r} cannot be repeated from a record.",
            where="run.json",
            fix="In Python: train_shadow_logits(…) with a Method of your own, and audit(…, shadows=…).",
        )
    values = {name: value for name, value in opened.record["method"].items() if name != "name"}
    method, target = FAMR.from_json(values), opened.facts.get("style_target")
    neutral = open_data(target, whole=True).everything() if target else None

    def unlearn(model: Classifier, _forget: Images, _retain: Images | None, seed: int) -> Classifier:
        place = None if device == "auto" else device
        monitor = Monitor(track_retain=False)
        return forget(
            model, opened.splits, method, style_target=neutral, seed=seed, device=place, monitor=monitor
        ).model

    return Method(json.dumps({"famr": values, "request": opened.request.to_json()}, sort_keys=True), unlearn)
