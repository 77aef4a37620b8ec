"""What `famr bench speed` does, between parsing and printing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from famr.bench.records import as_json, read_record, write_whole
from famr.bench.speed import Plan, default_sizes, run_speed
from famr.bench.speed_checks import checks
from famr.bench.speed_figure import draw_speed, panels
from famr.bench.speed_page import speed_page
from famr.bench.speed_subject import Named, size_named
from famr.cli.printing import say
from famr.errors import RequestError
from famr.report.markdown import as_markdown
from famr.runs.folder import atomic_file
from famr.storage.digests import COMPLETE


def run_and_write(
    output: Path,
    *,
    sizes: Sequence[str],
    model: str | None,
    arguments: Mapping[str, Any],
    images: int,
    epochs: int,
    batch: int,
    data_images: int,
    repeats: int,
    stages: Sequence[str],
    precision: str | None,
    seed: int,
    device: str,
    overwrite: bool,
    resume: bool,
    quiet: bool,
) -> dict[str, Any]:
    """Run the stages; the result file is whole after each of them, page and figure follow at the end."""
    _require_free(output, overwrite or resume)
    begun = read_record(output) if resume and output.is_file() else None
    if (model is not None and sizes) or (model is None and arguments):
        raise RequestError(
            "Give either --sizes, or --model with its --model-arg.", where="famr bench speed", fix="--sizes Ti,B"
        )
    plan = Plan(
        models=(),
        images=images,
        epochs=epochs,
        batch=batch,
        data_images=data_images,
        repeats=repeats,
        seed=seed,
        stages=tuple(stages) or Plan.stages,
        device=device,
        precision=precision,  # type: ignore[arg-type]  # checked by Plan
    )
    if model is not None:
        named = [Named(model.rpartition("/")[2], model, arguments)]
    else:
        named = [size_named(size) for size in sizes or default_sizes(plan.place)]
    told = (lambda _line: None) if quiet else say
    plan = replace(plan, models=tuple(named))
    content = run_speed(plan, told, lambda found: write_whole(output, as_json(found)), begun)
    write_whole(output, as_json(content))
    write_whole(output.with_suffix(".md"), as_markdown(speed_page(content)))
    if panels(content):
        with atomic_file(output.with_suffix(".png")) as staging:
            draw_speed(content, staging)
    for check in checks(content):
        told(f"{'yes' if check.holds else 'NO '}  {check.claim}: {check.found}")
    told(f"written: {output}, with a page (.md) and, where there is something to draw, a figure (.png)")
    return content


def _require_free(output: Path, overwrite: bool) -> None:
    if output.suffix != ".json":
        raise RequestError("The result file must end in .json.", where=str(output), fix="--output speed.json")
    here = output.resolve()
    if sealed := next((folder for folder in here.parents if (folder / COMPLETE).is_file()), None):
        raise RequestError("The result file lies inside a finished run.", where=str(sealed), fix="Name another.")
    taken = [file for file in (output.with_suffix(suffix) for suffix in (".json", ".md", ".png")) if file.exists()]
    if output.is_dir() or (taken and not overwrite):
        raise RequestError(
            "The result file exists already.",
            where=str((taken or [output])[0]),
            fix="Name another, or say --overwrite.",
        )
