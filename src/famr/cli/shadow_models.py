"""Shadow models for `famr audit`: the run's own training and forgetting, repeated from its records."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from famr.audit.shadow_logits import ShadowLogits, train_shadow_logits
from famr.audit.shadows import Method, Setting, ShadowDone
from famr.cli.opening import OpenedRun, open_style_target
from famr.cli.printing import say
from famr.config import FAMR
from famr.data import Images
from famr.errors import CheckpointError, RequestError
from famr.models import Classifier
from famr.proxies.recipe import recorded_recipe
from famr.storage.digests import COMPLETE
from famr.targets import TARGETS
from famr.training.recorded import OriginalTraining, original_training
from famr.unlearn.forget import forget
from famr.unlearn.history import Monitor


@dataclass(frozen=True)
class ShadowTask:
    """Which shadow models to train.

    Attributes:
        count: How many in all.
        start: What their training starts from: `scratch`, or a checkpoint; None: as recorded.
        cache: Folder that keeps them.
        original: Where the original is now; None: where the record says.
        seed: Of the first.
        device: Where to compute.
        quiet: Print no notes.
    """

    count: int
    start: str | None
    cache: Path
    original: str | None
    seed: int
    device: str
    quiet: bool = False


def train_shadow_models(opened: OpenedRun, task: ShadowTask) -> ShadowLogits:
    """Train the shadow models that the cache does not have, and take the logits of all.

    Args:
        opened: The run.
        task: Which shadow models.

    Raises:
        CheckpointError: The original is missing, or the record of its training.
        RequestError: The cache lies inside a finished run, the start is open, or the method cannot be repeated.
    """
    if opened.original is None:
        raise CheckpointError("Shadow models are trained as the original was, and it is not there.", fix="--original")
    folder = task.cache.resolve()
    if sealed := next((parent for parent in (folder, *folder.parents) if (parent / COMPLETE).is_file()), None):
        raise RequestError("The cache lies inside a finished run.", where=str(sealed), fix="Name a folder outside.")
    setting = training_of(opened, task.original, task.start)

    def on_shadow(done: ShadowDone) -> None:
        if not task.quiet:
            how = "from the cache" if done.cached else f"trained in {done.seconds:.1f} s"
            say(f"shadow model {done.number + 1}: {how}")

    splits = opened.splits
    return train_shadow_logits(
        Setting(setting.start, splits.forget, splits.retain, training=setting.training, seed=task.seed),
        _method(opened, task.device),
        task.count,
        task.cache,
        device=task.device,
        on_shadow=on_shadow,
    )


def training_of(opened: OpenedRun, moved: str | None, start: str | None) -> OriginalTraining:
    """How the original of a run was trained.

    Args:
        opened: The run.
        moved: Where the original is now; None: where the record says.
        start: As in `ShadowTask`.

    Raises:
        CheckpointError: The original is missing, or has no readable record.
        RequestError: Its start cannot be found.
    """
    if opened.original is None:
        raise CheckpointError("Models are trained as the original was, and it is not there.", fix="--original")
    return original_training(opened.original, Path(moved or opened.record["original"]["model"]), start)


def _method(opened: OpenedRun, device: str) -> Method:
    """The run's method with its resolved settings, for the same request."""
    name = opened.record["method"]["name"]
    if name != "FAMR":
        raise RequestError(
            f"Shadow models repeat the run's method, and {name!r} cannot be repeated from a record.",
            where="run.json",
            fix="In Python: train_shadow_logits(…) with a Method of your own, and audit(…, shadows=…).",
        )
    values = {name: value for name, value in opened.record["method"].items() if name != "name"}
    method, style_target = FAMR.from_json(values), open_style_target(opened.style_target)
    recipe = None
    if opened.original is not None and TARGETS[method.target].needs_proxy:
        recipe = recorded_recipe(opened.original).with_start(opened.original)  # each shadow model gets its own proxy

    def unlearn(model: Classifier, _forget: Images, _retain: Images | None, seed: int) -> Classifier:
        result = forget(
            model,
            opened.seen,
            method,
            style_target=style_target,
            recipe=recipe,
            seed=seed,
            device=None if device == "auto" else device,
            monitor=Monitor(track_retain=False),
        )
        return result.model

    rule = opened.record.get("calibration")
    calibration = {} if rule is None else {"calibration": rule}  # shadow models of earlier runs keep their names
    facts = {"famr": values, "request": opened.request.to_json(), **calibration}
    return Method(json.dumps(facts, sort_keys=True), unlearn)
