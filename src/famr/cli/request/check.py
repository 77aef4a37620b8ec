"""`famr request check`: whether finished requests are still forgotten."""

from __future__ import annotations

from famr.cli.options import Device
from famr.cli.printing import Result
from famr.cli.request.backend import ModelBackend
from famr.cli.request.options import DEFAULT_WORKSPACE, Workspace
from famr.cli.request.run import came_back
from famr.desk.records import all_requests, jobs, samples_of
from famr.desk.summaries import recheck
from famr.desk.workspace import open_workspace
from famr.errors import RequestError


def check_command(
    workspace: Workspace = DEFAULT_WORKSPACE, model: str | None = None, device: Device = "auto"
) -> Result:
    """Evaluate whether every finished request is still forgotten; exit code 7 where one came back.

    Args:
        workspace: Its folder.
        model: The model in use. None: that of the last run.
        device: Where to compute.

    Raises:
        RequestError: No request is finished yet.
    """
    with open_workspace(workspace) as desk:
        done = [record.number for record in all_requests(desk) if record.status == "done"]
        if not done:
            raise RequestError("No request is done yet.", where=str(workspace), fix="famr request run ID")
        backend = ModelBackend.of(desk.settings, device)
        last = jobs(desk, "done")[-1].number
        samples = {number: samples_of(desk, number) for number in done}
        verdicts = recheck(desk, backend.measure(model or desk.model_after(last), samples))

    def show() -> None:
        for id_, (verdict, figures) in verdicts.items():
            print(f"{id_}: {verdict} ({figures})")

    content = {id_: {"verdict": verdict, "says": figures} for id_, (verdict, figures) in verdicts.items()}
    return Result(content, show, came_back((id_, verdict) for id_, (verdict, _) in verdicts.items()))
