"""The command that exports a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from famr.cli import options as opt
from famr.cli.printing import print_json, say, visible

if TYPE_CHECKING:
    from famr.export.exporting import Export


def export(
    run: Annotated[Path, typer.Argument(help="A folder that `famr forget` or `famr train --without-…` wrote.")],
    form: Annotated[str, typer.Option("--format", help="onnx or torch-export.")] = "onnx",
    without_slot: Annotated[
        bool, typer.Option("--without-slot", help="Take the forgotten class out of the head and the label map.")
    ] = False,
    output_dir: Annotated[
        Path | None, typer.Option("--output-dir", "-o", help="The folder to write; default: beside the run.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="The data, if it has moved.")] = None,
    data_root: opt.DataRoot = None,
    overwrite: opt.Overwrite = False,
    as_json: opt.AsJson = False,
) -> None:
    """Write the unlearned model as ONNX or torch.export, and measure forgetting again on what was written."""
    made = run_export(run, form, without_slot, output_dir, data, data_root, overwrite)
    if as_json:
        print_json({**made.to_json(), "output_dir": str(made.folder)})
    else:
        print_export(made)


def run_export(
    run: Path,
    form: str,
    without_slot: bool,
    output_dir: Path | None,
    data: str | None,
    data_root: str | None,
    overwrite: bool,
) -> Export:
    """Export a finished run; without its images the export is written, and says that it was not measured."""
    from famr.cli.commands import recorded_facts, splits_for
    from famr.data.splits import EarlierRequest
    from famr.errors import DataError, RequestError
    from famr.export.exporting import export_model
    from famr.export.programs import require_format
    from famr.models import load_model
    from famr.provenance.statement import read_signable_run

    require_format(form)
    facts, model = read_signable_run(run), load_model(str(run))
    earlier = [EarlierRequest.from_json(values) for values in facts.record.get("earlier", [])]
    removed: list[str] = []
    if without_slot:
        named = facts.record.get("classes") or facts.request.classes
        removed = list(dict.fromkeys([*(name for before in earlier for name in before.classes), *named]))
        if not removed:
            raise RequestError(
                "No class was forgotten whole, so there is no slot to take out.",
                where=f"{run}: {facts.request.describe()}",
                fix="Leave out --without-slot.",
            )
    splits, why_not = None, ""
    try:
        model, splits = splits_for(model, facts.request, recorded_facts(run, facts.record, data, data_root), earlier)
    except (DataError, RequestError) as error:
        if data is not None:
            raise
        why_not = f"the data could not be opened: {error.what}"
    target = output_dir or run.resolve().with_name(f"{run.resolve().name}-{form}")
    return export_model(
        model, form, target, splits=splits, unmeasured_because=why_not, without=removed, overwrite=overwrite
    )


def print_export(made: Export) -> None:
    """The figures of the model and of the export, side by side."""
    from famr.metrics.tables import COLUMNS, in_percent

    if made.removed:
        print(f"without the slots of: {visible(', '.join(made.removed))}")
    if made.measured is not None:
        rows = {"model": made.measured.model, "export": made.measured.export}
        shown = [name for name in COLUMNS if name != "forget_kl"]
        print("".join(["        ", *(f"{COLUMNS[name]:>20}" for name in shown)]))
        for who, scores in rows.items():
            print("".join([f"{who:8}", *(f"{in_percent(name, getattr(scores, name)):>20}" for name in shown)]))
        print(f"largest difference of a logit: {made.measured.largest_difference:.2g}")
    for name, reason in made.not_available.items():
        print(f"{'NOT MEASURED' if name == 'measured' else f'{name} not available'}: {visible(reason)}")
    say(f"written to {made.folder}")
