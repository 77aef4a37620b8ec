"""`famr export`: a finished run as ONNX or torch.export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from famr.cli.opening import earlier_requests, open_splits, recorded_source
from famr.cli.options import DataRoot, MovedData, Overwrite, RemovedRun
from famr.cli.printing import Result, say
from famr.data.calibration import scored_splits
from famr.data.splits import EarlierRequest
from famr.errors import DataError, RequestError
from famr.export.exporting import Export, export_model
from famr.export.programs import FILES, require_format
from famr.metrics.tables import COLUMNS, in_percent
from famr.models import load_model
from famr.provenance.statement import SignableRun, read_signable_run
from famr.report.escaping import visible


def export_command(
    run: RemovedRun,
    form: Annotated[str, typer.Option("--format", metavar="|".join(FILES))] = "onnx",
    without_slot: Annotated[bool, typer.Option("--without-slot")] = False,
    output_dir: Annotated[Path | None, typer.Option("--output-dir", "-o")] = None,
    data: MovedData = None,
    data_root: DataRoot = None,
    overwrite: Overwrite = False,
) -> Result:
    """Export the unlearned model as ONNX or torch.export, and evaluate forgetting again on what was written.

    Without its images the export is written, and says that it was not measured.

    Args:
        run: The run folder.
        form: The format to write.
        without_slot: Take the forgotten class out of the head and the label map.
        output_dir: The folder to write. None: beside the run.
        data: Where the data is now.
        data_root: Where torchvision keeps its files now.
        overwrite: Replace an earlier export.

    Raises:
        RequestError: The format is unknown, or no class was forgotten whole.
    """
    require_format(form)
    facts, model = read_signable_run(run), load_model(str(run))
    earlier = earlier_requests(facts.record)
    removed = _forgotten_classes(facts, earlier) if without_slot else []
    if without_slot and not removed:
        raise RequestError(
            "No class was forgotten whole, so there is no slot to take out.",
            where=f"{run}: {facts.request.describe()}",
            fix="Leave out --without-slot.",
        )
    splits, why_not = None, ""
    try:
        source = recorded_source(run, facts.record, data, data_root)
        model, splits = open_splits(model, facts.request, source, earlier)
        splits = scored_splits(facts.record, splits)
    except (DataError, RequestError) as error:
        if data is not None:
            raise
        why_not = f"the data could not be opened: {error.what}"
    target = output_dir or run.resolve().with_name(f"{run.resolve().name}-{form}")
    written = export_model(
        model, form, target, splits=splits, unmeasured_because=why_not, without=removed, overwrite=overwrite
    )
    return Result({**written.to_json(), "output_dir": str(written.folder)}, lambda: print_export(written))


def _forgotten_classes(facts: SignableRun, earlier: list[EarlierRequest]) -> list[str]:
    own = facts.record.get("classes") or facts.request.classes
    return list(dict.fromkeys([*(name for before in earlier for name in before.classes), *own]))


def print_export(written: Export) -> None:
    """Print the metrics of the model and of the export, one above the other.

    Args:
        written: The export.
    """
    if written.removed:
        print(f"without the slots of: {visible(', '.join(written.removed))}")
    if written.measured is not None:
        rows = {"model": written.measured.model, "export": written.measured.export}
        columns = [name for name in COLUMNS if name != "forget_kl"]
        print("".join(["        ", *(f"{COLUMNS[name]:>20}" for name in columns)]))
        for which, scores in rows.items():
            print("".join([f"{which:8}", *(f"{in_percent(name, getattr(scores, name)):>20}" for name in columns)]))
        print(f"largest difference of a logit: {written.measured.largest_difference:.2g}")
    for name, reason in written.not_available.items():
        print(f"{'NOT MEASURED' if name == 'measured' else f'{name} not available'}: {visible(reason)}")
    say(f"written to {written.folder}")
