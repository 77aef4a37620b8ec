"""`famr request run`: carry out one request. `famr request batch` does the same with several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from famr.cli.printing import Result, say
from famr.cli.request.backend import ModelBackend
from famr.cli.request.options import DEFAULT_WORKSPACE, CarryOutOptions, RequestId, Workspace
from famr.desk.deadlines import today
from famr.desk.records import requests_of
from famr.desk.running import run_requests
from famr.desk.summaries import chain_status, recheck_after, request_summary
from famr.desk.workspace import open_workspace
from famr.errors import GateError
from famr.report.escaping import visible


def run_command(id_: RequestId, options: CarryOutOptions, workspace: Workspace = DEFAULT_WORKSPACE) -> Result:
    """Carry out one request, or finish what a process that died had begun.

    A request is carried out once. Exit code 7 where an earlier request came back.

    Args:
        id_: The request.
        options: How it is carried out.
        workspace: Its folder.
    """
    return carry_out(workspace, [id_], options)


def carry_out(workspace: Path, ids: Sequence[str] | None, options: CarryOutOptions) -> Result:
    """Carry out requests, and check that earlier ones are still forgotten.

    Args:
        workspace: Its folder.
        ids: The requests; None: all that are open.
        options: How they are carried out.
    """
    run_options = options.run_options()
    with open_workspace(workspace) as desk:
        backend = ModelBackend.of(desk.settings, options.device, options.quiet)

        def on_step(step: str) -> None:
            if not options.quiet:
                say(f"desk: {step}")

        outcome = run_requests(desk, ids, run_options, backend, today(), on_step)
        runs: list[dict[str, Any]] = [
            {
                "run": str(desk.run_folder(job)),
                "requests": [request_summary(desk, number) for number in requests_of(desk, job)],
                "earlier": recheck_after(desk, job),
            }
            for job in outcome.jobs
        ]
        chain = chain_status(desk)

    def show() -> None:
        for run in runs:
            for request in run["requests"]:
                images = f"{request['found']} image{'' if request['found'] == 1 else 's'}"
                print(f"{request['id']}: {visible(request['asks'])}: done, {images} forgotten")
            for id_, (verdict, figures) in run["earlier"].items():
                print(f"{id_}: {verdict} ({figures})")
            print(f"run: {visible(run['run'])}")
        for id_ in outcome.nothing_to_do:
            print(f"{id_}: nothing to do")
        print(chain)

    content = {"runs": runs, "nothing_to_do": list(outcome.nothing_to_do), "chain": chain}
    verdicts = ((id_, verdict) for run in runs for id_, (verdict, _) in run["earlier"].items())
    return Result(content, show, came_back(verdicts))


def came_back(verdicts: Iterable[tuple[str, str]]) -> GateError | None:
    """The requests that are no longer forgotten, as an error; None where all are.

    Args:
        verdicts: Ids of requests with their verdicts.
    """
    back = [id_ for id_, verdict in verdicts if verdict == "came back"]
    if not back:
        return None
    return GateError(
        f"{len(back)} earlier requests are not forgotten any more.",
        where=", ".join(back),
        fix="Do not use this model; train one without the requested data, or forget it again from a fresh workspace.",
    )
