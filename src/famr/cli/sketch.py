"""`famr sketch`: the statistics of the training data that a later `famr forget --sketch` uses instead of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from famr.cli.options import ByName, DataOptions, Device, Seed
from famr.cli.printing import Result, say_note
from famr.data.calibration import FEWEST, calibration_mask
from famr.engine.devices import pick_device
from famr.errors import RequestError
from famr.models import load_model
from famr.models.labels import match_labels
from famr.runs.folder import atomic_file
from famr.unlearn.sketch import take_sketch


def sketch_command(
    model: Annotated[str, typer.Argument()],
    data: DataOptions,
    output: Annotated[Path | None, typer.Option("--output", "-o")] = None,
    images: int = 1000,
    match_labels_by_name: ByName = False,
    seed: Seed = 0,
    device: Device = "auto",
    overwrite: Annotated[bool, typer.Option("--overwrite")] = False,
) -> Result:
    """Take from the training data what anchors need; a later `forget --sketch` needs none of it.

    Args:
        model: The trained model: a run folder.
        data: The images it was trained on.
        output: The file to write. None: beside the run folder.
        images: Training images to take the statistics from.
        match_labels_by_name: Whether the class names may be in another order.
        seed: Of the choice of images.
        device: Where to compute.
        overwrite: Replace the file.

    Raises:
        RequestError: The file exists.
    """
    target = output or Path(f"{Path(model)}.sketch.safetensors")
    if target.exists() and not overwrite:
        raise RequestError("The sketch exists already.", where=str(target), fix="Name another, or give --overwrite.")
    source = data.source(match_labels_by_name=match_labels_by_name)
    loaded, opened = match_labels(load_model(model), source.open(), by_name=match_labels_by_name)
    if opened.test is not None:
        calibration = opened.test.where(calibration_mask(opened.test))
        if len(calibration) < FEWEST:
            say_note(f"{len(opened.test)} held-out images are too few to calibrate on; the sketch has none")
        opened = replace(opened, test=calibration if len(calibration) >= FEWEST else None)
    sketch = take_sketch(loaded, opened, images=images, seed=seed, device=str(pick_device(device)))
    with atomic_file(target) as staging:
        sketch.save(staging)
    layers = len(sketch.fisher.layers)
    return Result(
        {"output": str(target), "images": sketch.images, "layers": layers},
        lambda: print(f"{sketch.images} images, {layers} layers: {target}"),
    )
