"""`famr report`: one page an auditor can read, as HTML, Markdown and JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from famr.cli.opening import load_retrained, open_run
from famr.cli.options import Device, MovedOptions, Retrained
from famr.cli.printing import Result, say
from famr.errors import CheckpointError, DataError, RequestError
from famr.extras import require_extra
from famr.report import hub
from famr.report.build import build_report
from famr.report.content import Report
from famr.report.escaping import visible
from famr.report.measure import forget_thumbnails, measure
from famr.report.records import read_run_records
from famr.report.write import write_report


def report_command(
    run: Annotated[Path, typer.Argument()],
    moved: MovedOptions,
    retrained: Retrained = None,
    output: Annotated[Path | None, typer.Option("--output", "-o")] = None,
    thumbnails: Annotated[bool, typer.Option("--thumbnails")] = False,
    push_to_hub: Annotated[str | None, typer.Option(metavar="OWNER/NAME")] = None,
    public: Annotated[bool, typer.Option("--public")] = False,
    device: Device = "auto",
) -> Result:
    """Write the report of a run: request, method, results, certificate, audit, and what they do not show.

    Args:
        run: A folder that `famr forget` or `famr request run` wrote.
        moved: What is no longer where its records say.
        retrained: The retrained model.
        output: Write FILE.html, FILE.md and FILE.json there, not into the run.
        thumbnails: Show some of the forgotten images.
        push_to_hub: Upload the model and its card to the Hub, privately.
        public: With --push-to-hub: let everybody see it.
        device: Where to compute.
    """
    report = make_report(run, moved, retrained, thumbnails, device)
    page = write_report(report, run, output)
    repository = (
        None if push_to_hub is None else hub.push_run(run, push_to_hub, hub.default_client(), private=not public)
    )

    def show() -> None:
        print(visible(report.verdict))
        say(f"written: {page}")
        if output is None and (run / "evidence.dsse.json").is_file():
            say("the run was signed before; sign it again")
        if repository is not None:
            say(f"uploaded: {repository}")

    return Result(report.to_json(), show)


def make_report(run: Path, moved: MovedOptions, retrained: str | None, thumbnails: bool, device: str) -> Report:
    """The report of a run; without its images it says why there are no measurements.

    Args:
        run: The run folder.
        moved: What is no longer where its records say.
        retrained: A model trained without the forget set.
        thumbnails: Whether to show some of the forgotten images.
        device: Where to compute.
    """
    for package in ("jinja2", "matplotlib"):
        require_extra(package, "report")
    records = read_run_records(run)
    try:
        opened = open_run(run, moved)
    except (RequestError, DataError, CheckpointError) as error:
        if moved != MovedOptions() or retrained is not None or thumbnails:
            raise  # what the user named cannot be used
        return build_report(records, None, f"the run could not be opened again ({error.what.rstrip('.')})")
    reference = load_retrained(retrained, opened.model, opened.request) if retrained else None
    measured = measure(opened.original, opened.model, reference, opened.splits, device)
    return build_report(records, measured, thumbnails=forget_thumbnails(opened.splits) if thumbnails else ())
