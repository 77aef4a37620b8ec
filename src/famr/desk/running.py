"""Carry out requests: plan, forget, look back, describe, close.

Each step is recorded before the next begins, and doing a step twice gives what doing it once gives, so a process may
die anywhere and the next one finishes, once.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Protocol

from famr.data import Data
from famr.data.request import Request
from famr.desk.describing import cost_of, describe
from famr.desk.duplicates import Fingerprint, matches
from famr.desk.lineage import Look, is_spent, told
from famr.desk.records import (
    Duplicate,
    Job,
    Moment,
    Record,
    State,
    all_requests,
    answered_by,
    close,
    find_request,
    finish,
    forgotten_so_far,
    give_up,
    jobs,
    new_job,
    samples_of,
    set_state,
    write_looks,
)
from famr.desk.scope import Forgotten, Sample, resolve
from famr.desk.workspace import Workspace
from famr.errors import CheckpointError, FamrError, GateError, RequestError
from famr.runs.folder import add_to_run, read_unlearning
from famr.storage.digests import COMPLETE

UNFINISHED: tuple[State, ...] = ("planned", "forgotten", "checked", "described")


class Hands(Protocol):
    """What the desk has done for it: opening data, forgetting, measuring."""

    def data(self) -> Data:
        """The training data, with the class names of the model."""

    def prints(self) -> Sequence[Fingerprint]:
        """The fingerprints of the training images."""

    def file_of(self, id_: str) -> Path | None:
        """The file behind an image, where there is one."""

    def forget(self, parent: str, request: Request, plan: Mapping[str, Any], folder: Path) -> None:
        """Write the run folder, whole or not at all."""

    def look(self, model: str, asked: Mapping[int, Sequence[Sample]]) -> Mapping[int, Look]:
        """How a model answers the images of each request."""


@dataclass(frozen=True)
class Manner:
    """How a run is made."""

    method: Mapping[str, Any]
    seed: int = 0
    include_duplicates: bool = False
    beyond_budget: bool = False


@dataclass(frozen=True)
class Outcome:
    """What came of a call: the jobs that were finished, and the requests for which nothing had to be done."""

    jobs: tuple[int, ...]
    nothing_to_do: tuple[str, ...]


def run_requests(
    workspace: Workspace,
    ids: Sequence[str] | None,
    manner: Manner,
    hands: Hands,
    day: date,
    on_step: Callable[[str], None] = lambda _step: None,
) -> Outcome:
    """Carry out some requests, or all that are open, in one run a kind; what another process left is finished first."""
    with workspace.alone():
        asked = None if ids is None else [find_request(workspace, id_) for id_ in dict.fromkeys(ids)]
        for record in asked or ():
            _require_open(workspace, record)
        made = [job.number for job in jobs(workspace, *UNFINISHED)]
        for job in jobs(workspace, *UNFINISHED):
            on_step(f"job {job.number}: going on after “{job.state}”")
            _carry_out(workspace, job, hands, day, on_step)
        wanted = {record.number for record in asked} if asked is not None else None
        due = [record for record in all_requests(workspace) if record.status == "open"]
        due = [record for record in due if wanted is None or record.number in wanted]
        if not due and not made:
            raise RequestError("No request is open.", where=str(workspace.folder), fix="famr request new …")
        idle: list[str] = []
        for kind in ("class", "samples"):
            some = [record for record in due if record.scope.kind == kind]
            planned = _plan(workspace, some, manner, hands, day, idle, on_step) if some else None
            if planned is not None:
                _carry_out(workspace, planned, hands, day, on_step)
                made.append(planned.number)
    return Outcome(tuple(made), tuple(idle))


def _require_open(workspace: Workspace, record: Record) -> None:
    if record.is_closed:
        raise RequestError(
            f"Request {record.id} is closed since {record.closed}: {record.status}, {record.note}.",
            where=str(workspace.folder),
            fix="There is nothing left to do; see `famr request show`.",
        )


def _plan(
    workspace: Workspace,
    records: Sequence[Record],
    manner: Manner,
    hands: Hands,
    day: date,
    idle: list[str],
    on_step: Callable[[str], None],
) -> Job | None:
    """Look for what is asked, and write down what will be done; None where nothing is left to do."""
    data, before = hands.data(), forgotten_so_far(workspace)
    found = {each.number: resolve(each.scope, data, before, hands.prints, hands.file_of) for each in records}
    for record in records:
        states = [sample.state for sample in found[record.number]]
        if "found" not in states:
            note = "all of it was forgotten before" if "forgotten before" in states else "nothing of it is in the data"
            with workspace.change() as rows:
                close(rows, record.number, "nothing to do", day, note)
            idle.append(record.id)
            del found[record.number]
    if not found:
        return None
    chain = [job.number for job in jobs(workspace, "done")]
    cost, budget = cost_of(workspace, chain), workspace.settings.budget
    if is_spent(cost, budget) and not manner.beyond_budget:
        raise GateError(
            told(cost, budget),
            where=str(workspace.folder),
            fix="Train a model without what was asked and begin a new workspace with it; or say --beyond-budget.",
        )
    classes = [each.asked for some in found.values() for each in some if each.state == "found" and each.id is None]
    ids = [each.id for some in found.values() for each in some if each.state == "found" and each.id is not None]
    request = Request(classes=list(dict.fromkeys(classes)), samples=list(dict.fromkeys(ids)))
    copies = _copies(data, request, before, hands.prints(), manner.include_duplicates)
    if request.samples and manner.include_duplicates:
        request = Request(samples=list(dict.fromkeys([*request.samples, *(each.retained for each in copies)])))
    plan = {"request": request.to_json(), "method": dict(manner.method), "seed": manner.seed}
    on_step("found")
    job = new_job(workspace, chain[-1] if chain else None, plan, found, copies)
    on_step("planned")
    return job


def _copies(
    data: Data, request: Request, before: Forgotten, prints: Sequence[Fingerprint], include: bool
) -> list[Duplicate]:
    """Images that stay and are the same picture as one that goes."""
    ids = data.train.ids
    names = [data.labels[target] if target >= 0 else None for target in data.train.targets.tolist()]
    goes = set(request.samples)
    leaving = [place for place, id_ in enumerate(ids) if id_ in goes or names[place] in request.classes]
    out = set(leaving)
    staying = [
        place
        for place, id_ in enumerate(ids)
        if place not in out and id_ not in before.ids and names[place] not in before.classes
    ]
    pairs = matches([prints[place] for place in leaving], [prints[place] for place in staying])
    also = include and not request.classes
    return [Duplicate(ids[leaving[m.first]], ids[staying[m.second]], m.similarity, also) for m in pairs]


def _carry_out(workspace: Workspace, job: Job, hands: Hands, day: date, on_step: Callable[[str], None]) -> None:
    """Every step of a job that is not behind it yet."""
    folder = workspace.run_folder(job.number)
    reached = UNFINISHED.index(job.state)
    if reached < 1:
        try:
            _forget(workspace, job, hands, folder, on_step)
        except FamrError as error:
            give_up(workspace, job, error.what)
            raise
        set_state(workspace, job, "forgotten")
        on_step("forgotten")
    if reached < 2:
        looks = _looks(workspace, job, hands, folder)
        on_step("measured")
        write_looks(workspace, job.number, looks)
        on_step("checked")
    if reached < 3:
        content = json.dumps(describe(workspace, job), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        add_to_run(folder, {"unlearning/requests.json": content})
        on_step("written")
        set_state(workspace, job, "described")
        on_step("described")
    finish(workspace, job, day)
    on_step("done")


def _forget(workspace: Workspace, job: Job, hands: Hands, folder: Path, on_step: Callable[[str], None]) -> None:
    """Make the run folder, unless a process that died had made it already."""
    for litter in folder.parent.glob(f".{folder.name}.*.tmp"):
        shutil.rmtree(litter)
    request = Request.from_json(job.plan["request"])
    if not (folder / COMPLETE).is_file():
        hands.forget(workspace.model_after(job.parent), request, job.plan, folder)
    on_step("run made")
    made, run = read_unlearning(folder)
    if made.to_json() != request.to_json() or run["seed"] != job.plan["seed"]:
        raise CheckpointError(
            "The folder of the run holds another run.", where=str(folder), fix="Move it away, and run again."
        )


def _looks(workspace: Workspace, job: Job, hands: Hands, folder: Path) -> dict[tuple[int, Moment], Look]:
    """Measure the requests of this job before and after it, and those of earlier jobs after it."""
    own = {number: samples_of(workspace, number) for number in answered_by(workspace, job.number)}
    done = [record.number for record in all_requests(workspace) if record.status == "done"]
    earlier = {number: samples_of(workspace, number) for number in done}
    looks: dict[tuple[int, Moment], Look] = {}
    looks |= {(number, "before"): look for number, look in hands.look(workspace.model_after(job.parent), own).items()}
    looks |= {(number, "after"): look for number, look in hands.look(str(folder), earlier | own).items()}
    return looks
