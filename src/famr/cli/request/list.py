"""`famr request list`: every request of a workspace."""

from __future__ import annotations

from famr.cli.printing import Result, print_table
from famr.cli.request.options import DEFAULT_WORKSPACE, AsCsv, Workspace
from famr.desk.deadlines import time_left, today
from famr.desk.records import all_requests
from famr.desk.summaries import chain_status, request_summary
from famr.desk.workspace import open_workspace
from famr.report.escaping import as_csv, visible

COLUMNS = ("id", "status", "received", "deadline", "due", "asks", "found", "not_found", "forgotten_before", "note")
SHOWN = ("id", "status", "deadline", "due", "asks", "found", "not_found")


def list_command(workspace: Workspace = DEFAULT_WORKSPACE, csv: AsCsv = False) -> Result:
    """List every request with its status and deadline, and what the chain of runs has cost.

    Args:
        workspace: Its folder.
        csv: Whether to print a table for a spreadsheet.
    """
    with open_workspace(workspace) as desk:
        chain = chain_status(desk)
        entries = []
        for record in all_requests(desk):
            due = "" if record.is_closed else time_left(record.deadline, today())
            status = {"status": record.status, "due": due, "note": record.note}
            entries.append({**request_summary(desk, record.number), **status})

    def show() -> None:
        if csv:
            print(as_csv(COLUMNS, [[entry[name] for name in COLUMNS] for entry in entries]), end="")
            return
        print_table(str(workspace), SHOWN, [[entry[name] for name in SHOWN] for entry in entries], whole=SHOWN[:4])
        for entry in entries:
            if entry["note"]:
                print(f"{entry['id']}: {visible(entry['note'])}")
        print(chain)

    return Result({"requests": entries, "chain": chain}, show)
