"""`famr sketch`: statistics of the training data, and proxies, for a later `famr forget --sketch` without the data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from famr.cli.options import ByName, DataOptions, Device, Quiet, Seed
from famr.cli.printing import Result, progress, say, say_note
from famr.data import Data
from famr.data.calibration import FEWEST, calibration_mask
from famr.engine.devices import pick_device
from famr.errors import RequestError
from famr.models import Classifier, load_model
from famr.models.labels import match_labels
from famr.proxies.cost import plan_proxies
from famr.proxies.proxies import GROUPS, steps_of
from famr.proxies.recipe import sketch_recipe
from famr.proxies.training import too_few_images
from famr.runs.events import ProxyStep
from famr.runs.folder import atomic_file
from famr.unlearn.sketch import Sketch, take_sketch


@dataclass(frozen=True)
class SketchTask:
    """A sketch that is to be taken.

    Attributes:
        target: The file to write.
        proxies: How many; None: 10 where that takes minutes, else none.
        seed: Of all draws.
        device: Where to compute.
        quiet: Show no progress.
        images: Training images to take statistics from.
    """

    target: Path
    proxies: int | None
    seed: int
    device: str
    quiet: bool
    images: int = 1000


def sketch_command(
    model: Annotated[str, typer.Argument()],
    data: DataOptions,
    output: Annotated[Path | None, typer.Option("--output", "-o")] = None,
    images: int = 1000,
    proxies: Annotated[int | None, typer.Option(min=0)] = None,
    match_labels_by_name: ByName = False,
    seed: Seed = 0,
    device: Device = "auto",
    overwrite: Annotated[bool, typer.Option("--overwrite")] = False,
    quiet: Quiet = False,
) -> Result:
    """Take from the training data what targets and anchors need; a later `forget --sketch` needs none of it.

    Args:
        model: The trained model: a run folder.
        data: The images it was trained on.
        output: The file to write. None: beside the run folder.
        images: Training images to take the statistics from.
        proxies: Models trained without a part of the data, for --effort thorough. None: 10 where that takes minutes.
        match_labels_by_name: Whether the class names may be in another order.
        seed: Of all draws.
        device: Where to compute.
        overwrite: Replace the file.
        quiet: Show no progress.

    Raises:
        RequestError: The file exists.
    """
    target = output or sketch_file(Path(model))
    require_free_sketch(target, overwrite)
    source = data.source(match_labels_by_name=match_labels_by_name)
    loaded, opened = match_labels(load_model(model), source.open(), by_name=match_labels_by_name)
    sketch = write_sketch(loaded, opened, SketchTask(target, proxies, seed, device, quiet, images))
    layers, count = len(sketch.fisher.layers), 0 if sketch.proxies is None else len(sketch.proxies)
    return Result(
        {"output": str(target), "images": sketch.images, "layers": layers, "proxies": count},
        lambda: print(f"{sketch.images} images, {layers} layers, {count} proxies: {target}"),
    )


def sketch_file(run: Path) -> Path:
    """Where the sketch of a run folder is written: beside it.

    Args:
        run: The folder.

    >>> sketch_file(Path("runs/original")).as_posix()
    'runs/original.sketch.safetensors'
    """
    return Path(f"{run}.sketch.safetensors")


def require_free_sketch(target: Path, overwrite: bool) -> None:
    """Refuse to replace a sketch without being asked to.

    Args:
        target: The file.
        overwrite: Whether it may be replaced.

    Raises:
        RequestError: It exists.
    """
    if target.exists() and not overwrite:
        raise RequestError("The sketch exists already.", where=str(target), fix="Name another, or give --overwrite.")


def write_sketch(model: Classifier, data: Data, task: SketchTask) -> Sketch:
    """Take a sketch and write it; held-out images that are for scoring stay out of it.

    Args:
        model: A trained model.
        data: What it was trained on.
        task: What to take.
    """
    if data.test is not None:
        calibration = data.test.where(calibration_mask(data.test))
        if len(calibration) < FEWEST:
            say_note(f"{len(data.test)} held-out images are too few to calibrate on; the sketch has none")
        data = replace(data, test=calibration if len(calibration) >= FEWEST else None)
    device, recipe = pick_device(task.device), sketch_recipe(model)
    groups = GROUPS if task.proxies is None else task.proxies
    if task.proxies is None and (too_few := too_few_images(data.train)) is not None:
        say_note(f"the sketch gets no proxies: {too_few}")
        groups = 0
    if groups:
        plan = plan_proxies(model, recipe, len(data.train), groups)
        if task.proxies is None and not plan.affordable(device.type):
            say_note(f"the sketch gets no proxies; --proxies {groups} adds them ({plan.describe(device.type)})")
            groups = 0
        elif not task.quiet:
            say(f"training {plan.describe(device.type)}")
    steps = steps_of(recipe, len(data.train), groups) if groups else 0
    with progress(steps, "taking the sketch", task.quiet) as on_event:
        sketch = take_sketch(
            model,
            data,
            images=task.images,
            proxies=groups,
            recipe=recipe,
            seed=task.seed,
            device=str(device),
            on_step=lambda step: on_event(ProxyStep(step, steps)),
        )
    with atomic_file(task.target) as staging:
        sketch.save(staging)
    return sketch
