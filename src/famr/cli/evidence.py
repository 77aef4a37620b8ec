"""The commands that look at a finished run: evaluate, certify and audit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from famr.cli import options as opt
from famr.cli.printing import print_audit, print_json, print_scores, say

Run = Annotated[Path, typer.Argument(help="A folder that `famr forget` wrote.")]
Retrained = Annotated[str | None, typer.Option(help="A model trained without the forget set.")]
Original = Annotated[str | None, typer.Option(help="The original, if it has moved.")]
MovedData = Annotated[str | None, typer.Option(help="The data, if it has moved.")]


def evaluate(
    run: Run,
    retrained: Retrained = None,
    original: Original = None,
    data: MovedData = None,
    data_root: opt.DataRoot = None,
    device: opt.Device = "auto",
    as_json: opt.AsJson = False,
) -> None:
    """Measure a finished run again: the five metrics, and the gaps to a retrained model."""
    from famr.cli.commands import run_evaluate

    scores = run_evaluate(run, retrained, original, data, data_root, device)
    if as_json:
        print_json(scores.to_json())
    else:
        print_scores(scores, str(run))


def certify(
    run: Annotated[Path, typer.Argument(help="A folder that `famr forget` or `famr train --without-…` wrote.")],
    retrained: Retrained = None,
    original: Original = None,
    data: MovedData = None,
    data_root: opt.DataRoot = None,
    sketch: Annotated[Path | None, typer.Option(help="The sketch that the run used, if it used one.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Compute the run's certificate again and compare; write nothing.")
    ] = False,
    lanczos_steps: Annotated[int | None, typer.Option(min=1, help="Steps for the ends of a spectrum.")] = None,
    retained_images: Annotated[int | None, typer.Option(min=1, help="Retained images for the influence step.")] = None,
    device: opt.Device = "auto",
    as_json: opt.AsJson = False,
) -> None:
    """Say what can be said about a run, with bounds and assumptions; written into the run folder."""
    from famr.certificates.certify import LANCZOS_STEPS, RETAINED_IMAGES
    from famr.certificates.page import certificate_page
    from famr.cli.certifying import read_certificate, require_same, run_certify, write_certificate

    stored = read_certificate(run) if check else None
    said = {} if stored is None else stored.subject
    computed = run_certify(
        run,
        retrained=retrained,
        original=original,
        data=data,
        data_root=data_root,
        sketch=sketch,
        device=device,
        lanczos_steps=lanczos_steps or said.get("lanczos_steps", LANCZOS_STEPS),
        retained_images=retained_images or said.get("retained_images", RETAINED_IMAGES),
    )
    if stored is not None:
        require_same(run, stored, computed)
    else:
        write_certificate(run, computed)
    if as_json:
        print_json(computed.to_json())
    else:
        print(certificate_page(computed))
        say(f"{'the certificate says what its files say' if check else 'written into'}: {run}")


def audit(
    run: Run,
    retrained: Annotated[
        list[str] | None, typer.Option(help="A model trained without the forget set. Repeatable: other seeds.")
    ] = None,
    original: Original = None,
    data: MovedData = None,
    data_root: opt.DataRoot = None,
    thresholds: Annotated[Path | None, typer.Option(help="A JSON file of thresholds, fixed before the run.")] = None,
    shadows: Annotated[int | None, typer.Option(help="Shadow models to train in all, for LiRA and U-LiRA.")] = None,
    shadow_start: Annotated[
        str | None, typer.Option(help="What their training starts from: scratch, or the checkpoint once fine-tuned.")
    ] = None,
    shadow_cache: Annotated[Path | None, typer.Option(help="Where they are kept; default RUN.shadows.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Leave out relearning, rounding, export and CKA.")] = False,
    seed: opt.Seed = 0,
    device: opt.Device = "auto",
    resume: opt.GoesOn = False,  # noqa: ARG001  # it always does: finished shadow models are in the cache
    as_json: opt.AsJson = False,
    quiet: opt.Quiet = False,
) -> None:
    """Attack a run as a hostile reader would; exit code 7 where a gate fails. Written into the run folder.

    An audit that was stopped is simply started again: shadow models that were finished are not trained twice.
    """
    from famr.cli.auditing import Places, require_pass, run_audit
    from famr.cli.shadowing import Shadowing

    shadowing = None
    if shadows is not None:
        cache = shadow_cache or Path(f"{run}.shadows")
        shadowing = Shadowing(shadows, shadow_start, cache, quiet or as_json)
    places = Places(original, data, data_root)
    found = run_audit(run, retrained or [], places, thresholds, shadowing, quick, seed, device)
    if as_json:
        print_json(found.to_json())
    else:
        print_audit(found, str(run))
    require_pass(found)
