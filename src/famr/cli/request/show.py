"""`famr request show`: one request."""

from __future__ import annotations

from dataclasses import asdict

from famr.cli.printing import Result, print_table
from famr.cli.request.options import DEFAULT_WORKSPACE, AsCsv, RequestId, Workspace
from famr.desk.records import duplicates_of, find_request, job_of, samples_of
from famr.desk.summaries import recheck_after, request_summary
from famr.desk.workspace import open_workspace
from famr.report.escaping import as_csv, visible

COLUMNS = ("asked", "state", "id", "images", "similarity")


def show_command(id_: RequestId, workspace: Workspace = DEFAULT_WORKSPACE, csv: AsCsv = False) -> Result:
    """Show one request: what it names, what was found, and the run that carries it out.

    Also copies of forgotten images among those that are retained, and whether earlier requests are still forgotten.

    Args:
        id_: The request.
        workspace: Its folder.
        csv: Whether to print a table for a spreadsheet.
    """
    with open_workspace(workspace) as desk:
        record = find_request(desk, id_)
        summary = {**request_summary(desk, record.number), "status": record.status, "note": record.note}
        job = job_of(desk, record.number)
        folder = None if job is None else desk.run_folder(job)
        samples = samples_of(desk, record.number)
        own = {sample.id for sample in samples}
        copies = [] if job is None else duplicates_of(desk, job)
        copies = [copy for copy in copies if record.scope.classes or copy.forgotten in own]
        earlier = {} if job is None else recheck_after(desk, job)

    def show() -> None:
        rows = [[getattr(sample, name) for name in COLUMNS] for sample in samples]
        if csv:
            print(as_csv(COLUMNS, rows), end="")
            return
        facts = [[name.replace("_", " "), value] for name, value in summary.items()]
        print_table(f"{record.id}: {summary['asks']}", ["what", "value"], facts)
        print_table("Samples", COLUMNS, rows)
        if copies:
            cells = [[copy.forgotten, copy.retained, copy.similarity, copy.included] for copy in copies]
            print_table("Copies among the retained images", ["forgotten", "copy", "similarity", "forgotten too"], cells)
        for name, (verdict, figures) in earlier.items():
            print(f"{name}: {verdict} ({figures})")
        if folder is not None:
            print(f"run: {visible(str(folder))}")

    content = {
        **summary,
        "samples": [asdict(sample) for sample in samples],
        "duplicates": [asdict(copy) for copy in copies],
        "run": None if folder is None else str(folder),
        "earlier": [{"id": name, "verdict": verdict, "says": figures} for name, (verdict, figures) in earlier.items()],
    }
    return Result(content, show)
