"""What `famr request run`, `batch` and `check` do, between parsing and printing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from famr.cli.desk_hands import RealHands
from famr.cli.printing import print_json, say, visible
from famr.config import FAMR
from famr.desk.deadlines import today
from famr.desk.records import all_requests, jobs, requests_of, samples_of
from famr.desk.running import RunOptions, run_requests
from famr.desk.summaries import chain_status, recheck, recheck_after, request_summary
from famr.desk.workspace import open_workspace
from famr.errors import GateError, RequestError


def manner_of(
    paper: bool, settings: Path | None, seed: int, include_duplicates: bool, beyond_budget: bool
) -> RunOptions:
    """How runs are to be made; bad settings fail here, before anything is planned."""
    method = FAMR.paper() if paper else FAMR()
    if settings is not None:
        if paper:
            raise RequestError("Give --paper or --method, not both.")
        try:
            found = json.loads(settings.read_text(encoding="utf-8"))
            found = found.get("method", found)
            method = FAMR.from_json({name: value for name, value in found.items() if name != "name"})
        except (OSError, ValueError, AttributeError, TypeError) as error:
            raise RequestError(
                "The method's settings cannot be read.", where=str(settings), fix="Give a JSON object, as in run.json."
            ) from error
    return RunOptions(method.to_json(), seed, include_duplicates, beyond_budget)


def carry_out(
    workspace: Path, ids: Sequence[str] | None, manner: RunOptions, device: str, quiet: bool, as_json: bool
) -> None:
    """Carry out requests, tell what came of it, and fail where something that was forgotten came back."""
    with open_workspace(workspace) as desk:
        hands = RealHands(desk.settings.model, desk.settings.data, device, quiet)
        steps = (lambda _step: None) if quiet else (lambda step: say(f"desk: {step}"))
        outcome = run_requests(desk, ids, manner, hands, today(), steps)
        made = [
            (
                str(desk.run_folder(job)),
                [request_summary(desk, each) for each in requests_of(desk, job)],
                recheck_after(desk, job),
            )
            for job in outcome.jobs
        ]
        chain = chain_status(desk)
    if as_json:
        runs = [{"run": folder, "requests": done, "earlier": earlier} for folder, done, earlier in made]
        print_json({"runs": runs, "nothing_to_do": list(outcome.nothing_to_do), "chain": chain})
    else:
        for folder, done, earlier in made:
            for request in done:
                images = f"{request['found']} image{'' if request['found'] == 1 else 's'}"
                print(f"{request['id']}: {visible(request['asks'])}: done, {images} forgotten")
            for id_, (verdict, says) in earlier.items():
                print(f"{id_}: {verdict} ({says})")
            print(f"run: {visible(folder)}")
        for id_ in outcome.nothing_to_do:
            print(f"{id_}: nothing to do")
        print(chain)
    back = [id_ for _, _, earlier in made for id_, (verdict, _) in earlier.items() if verdict == "came back"]
    _require_forgotten(back)


def look_back(workspace: Path, model: str | None, device: str, as_json: bool) -> None:
    """Measure every request that is done on the model in use."""
    with open_workspace(workspace) as desk:
        done = [record.number for record in all_requests(desk) if record.status == "done"]
        if not done:
            raise RequestError("No request is done yet.", where=str(workspace), fix="famr request run ID")
        hands = RealHands(desk.settings.model, desk.settings.data, device)
        last = jobs(desk, "done")[-1].number
        looks = hands.measure(model or desk.model_after(last), {number: samples_of(desk, number) for number in done})
        found = recheck(desk, looks)
    if as_json:
        print_json({id_: {"verdict": verdict, "says": says} for id_, (verdict, says) in found.items()})
    else:
        for id_, (verdict, says) in found.items():
            print(f"{id_}: {verdict} ({says})")
    _require_forgotten([id_ for id_, (verdict, _) in found.items() if verdict == "came back"])


def _require_forgotten(back: Sequence[str]) -> None:
    if back:
        raise GateError(
            f"{len(back)} earlier requests are not forgotten any more.",
            where=", ".join(back),
            fix="Do not use this model; train one without what was asked, or forget it again from a fresh workspace.",
        )
