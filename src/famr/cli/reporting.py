"""`famr report`: one page an auditor can read, as HTML, Markdown and JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from famr.cli import options as opt
from famr.cli.printing import print_json, say, visible

if TYPE_CHECKING:
    from famr.report.content import Report


def report(
    run: Annotated[Path, typer.Argument(help="A folder that `famr forget` or `famr request run` wrote.")],
    retrained: Annotated[str | None, typer.Option(help="A model trained without the forget set.")] = None,
    original: Annotated[str | None, typer.Option(help="The original, if it has moved.")] = None,
    data: Annotated[str | None, typer.Option(help="The data, if it has moved.")] = None,
    data_root: opt.DataRoot = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write FILE.html, FILE.md and FILE.json there, not into the run."),
    ] = None,
    thumbnails: Annotated[bool, typer.Option("--thumbnails", help="Show some of the forgotten images.")] = False,
    push_to_hub: Annotated[
        str | None, typer.Option(metavar="OWNER/NAME", help="Upload the model and its card to the Hub, privately.")
    ] = None,
    public: Annotated[bool, typer.Option("--public", help="With --push-to-hub: let everybody see it.")] = False,
    device: opt.Device = "auto",
    as_json: opt.AsJson = False,
) -> None:
    """Write what was asked, done and reached, what is certified and audited, and what all that does not show."""
    from famr.report.write import write_report

    made = make_report(run, retrained, original, data, data_root, thumbnails, device)
    page = write_report(made, run, output)
    where = None if push_to_hub is None else _push(run, push_to_hub, public)
    if as_json:
        print_json(made.to_json())
    else:
        print(visible(made.verdict))
        say(f"written: {page}")
        if output is None and (run / "evidence.dsse.json").is_file():
            say("the run was signed before; sign it again")
        if where is not None:
            say(f"uploaded: {where}")


def make_report(
    run: Path,
    retrained: str | None,
    original: str | None,
    data: str | None,
    data_root: str | None,
    thumbnails: bool,
    device: str,
) -> Report:
    """Read the records of a run, and measure what can be measured."""
    from famr.cli.commands import load_reference, open_run
    from famr.errors import CheckpointError, DataError, RequestError
    from famr.extras import require_extra
    from famr.report.build import build_report
    from famr.report.measure import forget_thumbnails, measure
    from famr.report.records import read_run_records

    for package in ("jinja2", "matplotlib"):
        require_extra(package, "report")
    records = read_run_records(run)
    try:
        opened = open_run(run, original, data, data_root)
    except (RequestError, DataError, CheckpointError) as error:
        if any(given is not None for given in (retrained, original, data, data_root)) or thumbnails:
            raise  # the user named something, and it is of no use
        return build_report(records, None, f"the run could not be opened again ({error.what.rstrip('.')})")
    reference = load_reference(retrained, opened.model, opened.request) if retrained else None
    measured = measure(opened.original, opened.model, reference, opened.splits, device)
    return build_report(records, measured, thumbnails=forget_thumbnails(opened.splits) if thumbnails else ())


def _push(run: Path, name: str, public: bool) -> str:
    from famr.report.hub import default_client, push_run

    return push_run(run, name, default_client(), private=not public)
