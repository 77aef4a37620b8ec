"""Carry out requests: plan a job, forget, measure, describe, close.

Each step is recorded before the next one starts, and repeating a step gives the same result, so a process may die
anywhere and the next one finishes the job, once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Protocol

from famr.data import Data
from famr.data.request import Request
from famr.desk.chain import describe_cost, is_spent
from famr.desk.duplicates import matches
from famr.desk.lookup import Forgotten, Sample, SearchableData, find_samples
from famr.desk.recheck import Measurement
from famr.desk.records import (
    Duplicate,
    Job,
    JobState,
    Moment,
    RequestRecord,
    all_requests,
    close_request,
    fail_job,
    find_request,
    finish_job,
    forgotten_so_far,
    jobs,
    plan_job,
    requests_of,
    samples_of,
    set_job_state,
    write_measurements,
)
from famr.desk.summaries import chain_cost, describe_job
from famr.desk.workspace import Workspace
from famr.errors import CheckpointError, FamrError, GateError, RequestError
from famr.runs.folder import add_to_run, read_unlearning
from famr.storage.digests import COMPLETE
from famr.storage.leftovers import sweep_folder
from famr.storage.locks import locked

UNFINISHED: tuple[JobState, ...] = ("planned", "forgotten", "checked", "described")
"""The states of an unfinished job, in the order of its steps."""


class DeskBackend(SearchableData, Protocol):
    """The work of the desk outside its records: open data, forget, measure."""

    def forget(self, parent: str, request: Request, plan: Mapping[str, Any], folder: Path) -> None:
        """Make a model forget, and write the run folder, whole or not at all.

        Args:
            parent: The model to start from, as for `load_model`.
            request: What to forget.
            plan: See `Job.plan`.
            folder: The run folder to write.
        """

    def measure(self, model: str, samples: Mapping[int, Sequence[Sample]]) -> Mapping[int, Measurement]:
        """Evaluate a model on the images of requests.

        Args:
            model: The model, as for `load_model`.
            samples: Search results of each request, by its number.

        Returns:
            Measurements by number of the request.
        """


@dataclass(frozen=True)
class RunOptions:
    """How a run is made.

    Attributes:
        method: Settings of the method, as in a run.json.
        seed: Seed of the run.
        include_duplicates: Whether copies of the samples of a request are forgotten, too.
        beyond_budget: Whether to run although the budget of the chain is spent.
    """

    method: Mapping[str, Any]
    seed: int = 0
    include_duplicates: bool = False
    beyond_budget: bool = False


@dataclass(frozen=True)
class RunOutcome:
    """Outcome of a call of `run_requests`.

    Attributes:
        jobs: Numbers of the jobs it finished.
        nothing_to_do: Ids of the requests for which nothing had to be forgotten.
    """

    jobs: tuple[int, ...]
    nothing_to_do: tuple[str, ...]


def run_requests(
    workspace: Workspace,
    ids: Sequence[str] | None,
    options: RunOptions,
    backend: DeskBackend,
    day: date,
    on_step: Callable[[str], None] = lambda _step: None,
) -> RunOutcome:
    """Carry out requests, in one run for all classes and one for all samples; unfinished jobs are finished first.

    Args:
        workspace: An open workspace.
        ids: Ids of the requests; None for all that are open.
        options: How new runs are made.
        backend: What opens the data, forgets and measures.
        day: The current date.
        on_step: Called with the name of each step when it is complete.

    Raises:
        RequestError: A request is unknown or closed, or none is open.
        GateError: The budget of the chain is spent, or the run did not pass its gates.
        StorageError: Another process carries out requests of this workspace.
        CheckpointError: The run folder holds another run, or a run of the chain is damaged.
    """
    with workspace.exclusive():
        selected = None if ids is None else [find_request(workspace, id_) for id_ in dict.fromkeys(ids)]
        for record in selected or ():
            _require_open(workspace, record)
        runner = _Runner(workspace, backend, day, on_step)
        unfinished = jobs(workspace, *UNFINISHED)
        for job in unfinished:
            on_step(f"job {job.number}: resuming after “{job.state}”")
            runner.carry_out(job)
        numbers = None if selected is None else {record.number for record in selected}
        open_records = [
            record
            for record in all_requests(workspace)
            if record.status == "open" and (numbers is None or record.number in numbers)
        ]
        if not open_records and not unfinished:
            raise RequestError("No request is open.", where=str(workspace.folder), fix="famr request new …")
        finished, idle = [job.number for job in unfinished], []
        for kind in ("class", "samples"):
            samples, idle_records = runner.search([record for record in open_records if record.scope.kind == kind])
            idle += [record.id for record in idle_records]
            if samples:
                job = runner.plan(samples, options)
                runner.carry_out(job)
                finished.append(job.number)
    return RunOutcome(tuple(finished), tuple(idle))


def _require_open(workspace: Workspace, record: RequestRecord) -> None:
    if record.is_closed:
        raise RequestError(
            f"Request {record.id} is closed since {record.closed}: {record.status}, {record.note}.",
            where=str(workspace.folder),
            fix="There is nothing left to do; see `famr request show`.",
        )


@dataclass(frozen=True)
class _Runner:
    workspace: Workspace
    backend: DeskBackend
    day: date
    on_step: Callable[[str], None]

    def search(self, records: Sequence[RequestRecord]) -> tuple[dict[int, Sequence[Sample]], list[RequestRecord]]:
        """Search results by number of the request; requests with nothing to forget are closed and returned apart."""
        before = forgotten_so_far(self.workspace)
        samples: dict[int, Sequence[Sample]] = {}
        idle = []
        for record in records:
            results = find_samples(record.scope, self.backend, before)
            states = {sample.state for sample in results}
            if "found" in states:
                samples[record.number] = results
                continue
            note = "all of it was forgotten before" if "forgotten before" in states else "nothing of it is in the data"
            with self.workspace.transaction() as connection:
                close_request(connection, record.number, "nothing to do", self.day, note)
            idle.append(record)
        return samples, idle

    def plan(self, samples: Mapping[int, Sequence[Sample]], options: RunOptions) -> Job:
        """Record a job for the samples of some requests."""
        chain = [job.number for job in jobs(self.workspace, "done")]
        cost, budget = chain_cost(self.workspace, chain), self.workspace.settings.budget
        if is_spent(cost, budget) and not options.beyond_budget:
            raise GateError(
                describe_cost(cost, budget),
                where=str(self.workspace.folder),
                fix="Train a model without the requested data and begin a new workspace with it; "
                "or give --beyond-budget.",
            )
        found = [sample for results in samples.values() for sample in results if sample.state == "found"]
        classes = dict.fromkeys(sample.asked for sample in found if sample.id is None)
        ids = dict.fromkeys(sample.id for sample in found if sample.id is not None)
        request = Request(classes=list(classes), samples=list(ids))
        include = options.include_duplicates and not request.classes
        copies = self._copies(request, include)
        if include:
            request = Request(samples=list(dict.fromkeys([*ids, *(copy.retained for copy in copies)])))
        plan = {"request": request.to_json(), "method": dict(options.method), "seed": options.seed}
        self.on_step("searched")
        job = plan_job(self.workspace, chain[-1] if chain else None, plan, samples, copies)
        self.on_step("planned")
        return job

    def _copies(self, request: Request, include: bool) -> list[Duplicate]:
        """Copies of the images to be forgotten, among those that are retained."""
        data, prints, before = self.backend.data(), self.backend.fingerprints(), forgotten_so_far(self.workspace)
        forget, retain = _partition(data, request, before)
        pairs = matches([prints[index] for index in forget], [prints[index] for index in retain])
        ids = data.train.ids
        return [Duplicate(ids[forget[m.first]], ids[retain[m.second]], m.similarity, include) for m in pairs]

    def carry_out(self, job: Job) -> None:
        """Do the steps of a job that are not complete yet."""
        folder = self.workspace.run_folder(job.number)
        complete = UNFINISHED.index(job.state)
        if complete < 1:
            try:
                self._forget(job, folder)
            except FamrError as error:
                fail_job(self.workspace, job, error.what)
                raise
            set_job_state(self.workspace, job, "forgotten")
            self.on_step("forgotten")
        if complete < 2:
            measurements = self._measure(job, folder)
            self.on_step("measured")
            write_measurements(self.workspace, job.number, measurements)
            self.on_step("checked")
        if complete < 3:
            content = describe_job(self.workspace, job)
            text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
            add_to_run(folder, {"unlearning/requests.json": text})
            self.on_step("requests.json written")
            set_job_state(self.workspace, job, "described")
            self.on_step("described")
        finish_job(self.workspace, job, self.day)
        self.on_step("done")

    def _forget(self, job: Job, folder: Path) -> None:
        """Write the run folder, unless a process that died had written it already."""
        with locked(folder):
            sweep_folder(folder)
        request = Request.from_json(job.plan["request"])
        if not (folder / COMPLETE).is_file():
            self.backend.forget(self.workspace.model_after(job.parent), request, job.plan, folder)
        self.on_step("run written")
        written, run = read_unlearning(folder)
        if written.to_json() != request.to_json() or run["seed"] != job.plan["seed"]:
            raise CheckpointError(
                "The folder of the run holds another run.", where=str(folder), fix="Move it away, and run again."
            )

    def _measure(self, job: Job, folder: Path) -> dict[tuple[int, Moment], Measurement]:
        """Measure the requests of this job before and after it, and those of earlier jobs after it."""
        own = {number: samples_of(self.workspace, number) for number in requests_of(self.workspace, job.number)}
        done = [record.number for record in all_requests(self.workspace) if record.status == "done"]
        earlier = {number: samples_of(self.workspace, number) for number in done}
        before = self.backend.measure(self.workspace.model_after(job.parent), own)
        after = self.backend.measure(str(folder), earlier | own)
        measurements: dict[tuple[int, Moment], Measurement] = {}
        measurements |= {(number, "before"): measurement for number, measurement in before.items()}
        measurements |= {(number, "after"): measurement for number, measurement in after.items()}
        return measurements


def _partition(data: Data, request: Request, before: Forgotten) -> tuple[list[int], list[int]]:
    """Indices of the training images that the request covers, and of those that neither it nor the chain forgets."""
    names = [data.labels[target] if target >= 0 else None for target in data.train.targets.tolist()]
    samples, classes = set(request.samples), set(request.classes)
    forget, retain = [], []
    for index, (id_, name) in enumerate(zip(data.train.ids, names, strict=True)):
        if id_ in samples or name in classes:
            forget.append(index)
        elif id_ not in before.ids and name not in before.classes:
            retain.append(index)
    return forget, retain
