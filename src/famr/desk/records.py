"""Requests and jobs as rows of the database: written once, read back as they were."""

from __future__ import annotations

import difflib
import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from typing import Any, Literal

from sqlalchemy import Connection, Row, Table, delete, func, insert, select, update

from famr.desk.lookup import Forgotten, Sample
from famr.desk.recheck import Measurement
from famr.desk.schema import DUPLICATES, JOB_REQUESTS, JOBS, MEASUREMENTS, REQUESTS, SAMPLES
from famr.desk.scope import Scope
from famr.desk.workspace import Workspace
from famr.errors import RequestError

RequestStatus = Literal["open", "running", "done", "nothing to do"]
JobState = Literal["planned", "forgotten", "checked", "described", "done", "failed"]
Moment = Literal["before", "after"]


@dataclass(frozen=True)
class RequestRecord:
    """A deletion request.

    Attributes:
        number: Its number; numbers give the order of requests, dates do not.
        scope: What it covers.
        received: Date it was received.
        deadline: Date until which it must be carried out.
        status: Whether it is open, running, done, or needs nothing to be done.
        closed: Date it was closed; None where it is not.
        note: How it was closed, or why its last run failed.
    """

    number: int
    scope: Scope
    received: date
    deadline: date
    status: RequestStatus
    closed: date | None
    note: str

    @property
    def id(self) -> str:
        """Its id for people, such as `R-0001`."""
        return f"R-{self.number:04d}"

    @property
    def is_closed(self) -> bool:
        """Whether nothing is left to do."""
        return self.status in ("done", "nothing to do")


@dataclass(frozen=True)
class Duplicate:
    """A forgotten image and its copy among the retained images.

    Attributes:
        forgotten: Id of the forgotten image.
        retained: Id of the copy.
        similarity: Correlation of their thumbnails; None for the same pixels.
        included: Whether the copy was forgotten too.
    """

    forgotten: str
    retained: str
    similarity: float | None
    included: bool


@dataclass(frozen=True)
class Job:
    """One run for one or more requests.

    Attributes:
        number: Its number, which names its run folder.
        parent: Number of the job before it in the chain; None for the first.
        plan: The request as `famr.Request.to_json` writes it, the method and the seed.
        state: Its last completed step.
    """

    number: int
    parent: int | None
    plan: Mapping[str, Any]
    state: JobState


def submit_request(
    workspace: Workspace, scope: Scope, samples: Sequence[Sample], received: date, deadline: date
) -> tuple[RequestRecord, bool]:
    """Record a request; one with the same content is recorded once.

    Args:
        workspace: An open workspace.
        scope: What the request covers.
        samples: Results of the search for it.
        received: Date it was received.
        deadline: Date until which it must be carried out.

    Returns:
        The request, and whether it is new.
    """
    with workspace.transaction() as connection:
        digest = scope.digest()
        known = connection.scalar(select(REQUESTS.c.number).where(REQUESTS.c.digest == digest))
        if known is not None:
            return _read_request(connection, known), False
        values = {"received": received.isoformat(), "deadline": deadline.isoformat()}
        number = _insert_one(connection, REQUESTS, digest=digest, scope=json.dumps(scope.to_json()), **values)
        write_samples(connection, number, samples)
        return _read_request(connection, number), True


def write_samples(connection: Connection, request: int, samples: Sequence[Sample]) -> None:
    """Store the search results of a request, in place of earlier ones.

    Args:
        connection: A connection in a write transaction.
        request: Number of the request.
        samples: The results.
    """
    connection.execute(delete(SAMPLES).where(SAMPLES.c.request == request))
    rows = [{"request": request, "position": position, **asdict(sample)} for position, sample in enumerate(samples)]
    _insert_all(connection, SAMPLES, rows)


def all_requests(workspace: Workspace) -> list[RequestRecord]:
    """Every request, by number.

    Args:
        workspace: An open workspace.

    Warns:
        UserWarning: A request was closed before it was received, so a clock or a given date was wrong.
    """
    records = [_as_record(row) for row in workspace.rows(select(REQUESTS).order_by(REQUESTS.c.number))]
    for record in records:
        if record.closed is not None and record.closed < record.received:
            warnings.warn(
                f"{record.id} was closed on {record.closed}, before it was received on {record.received}: a clock was "
                "wrong or went backwards, or the date given was. Numbers tell the order, dates do not.",
                stacklevel=2,
            )
    return records


def find_request(workspace: Workspace, id_: str) -> RequestRecord:
    """A request by its id.

    Args:
        workspace: An open workspace.
        id_: Id such as `R-0001`, in any case.

    Raises:
        RequestError: There is none; the error names similar ids.
    """
    known = {record.id: record for record in all_requests(workspace)}
    if id_.upper() in known:
        return known[id_.upper()]
    near = difflib.get_close_matches(id_.upper(), list(known), n=3)
    raise RequestError(
        f"There is no request {id_!r}." + (f" Did you mean {' or '.join(near)}?" if near else ""),
        where=f"{len(known)} requests in {workspace.folder}",
        fix="List them with `famr request list`.",
    )


def read_request(workspace: Workspace, number: int) -> RequestRecord:
    """A request by its number, which must exist.

    Args:
        workspace: An open workspace.
        number: Number of the request.
    """
    with workspace.engine.connect() as connection:
        return _read_request(connection, number)


def samples_of(workspace: Workspace, request: int) -> list[Sample]:
    """The search results of a request.

    Args:
        workspace: An open workspace.
        request: Number of the request.
    """
    columns = (SAMPLES.c.asked, SAMPLES.c.state, SAMPLES.c.id, SAMPLES.c.images, SAMPLES.c.similarity)
    query = select(*columns).where(SAMPLES.c.request == request).order_by(SAMPLES.c.position)
    return [Sample(*row) for row in workspace.rows(query)]


def close_request(connection: Connection, request: int, status: RequestStatus, day: date, note: str) -> None:
    """Record that nothing is left to do for a request.

    Args:
        connection: A connection in a write transaction.
        request: Number of the request.
        status: `done` or `nothing to do`.
        day: The current date.
        note: How it was closed.
    """
    _update_request(connection, request, status=status, closed=day.isoformat(), note=note)


def forgotten_so_far(workspace: Workspace) -> Forgotten:
    """What the finished runs have made the chain forget.

    Args:
        workspace: An open workspace.
    """
    done = select(SAMPLES.c.asked, SAMPLES.c.id).join(REQUESTS, REQUESTS.c.number == SAMPLES.c.request)
    samples = workspace.rows(done.where(REQUESTS.c.status == "done", SAMPLES.c.state == "found"))
    copies = select(DUPLICATES.c.retained).join(JOBS, JOBS.c.number == DUPLICATES.c.job)
    included = workspace.rows(copies.where(JOBS.c.state == "done", DUPLICATES.c.included != 0))
    ids = {sample.id for sample in samples if sample.id is not None} | {copy.retained for copy in included}
    return Forgotten({sample.asked for sample in samples if sample.id is None}, ids)


def plan_job(
    workspace: Workspace,
    parent: int | None,
    plan: Mapping[str, Any],
    samples: Mapping[int, Sequence[Sample]],
    duplicates: Iterable[Duplicate],
) -> Job:
    """Record a job for some requests, which are `running` from here on.

    Args:
        workspace: An open workspace.
        parent: Number of the last finished job of the chain; None for the first.
        plan: See `Job.plan`.
        samples: Search results of each request, by its number.
        duplicates: Copies of what is forgotten, among the retained images.
    """
    with workspace.transaction() as connection:
        number = _insert_one(connection, JOBS, parent=parent, plan=json.dumps(plan), state="planned")
        for request, results in samples.items():
            write_samples(connection, request, results)
            connection.execute(insert(JOB_REQUESTS).values(job=number, request=request))
            _update_request(connection, request, status="running", note="")
        copies = [{"job": number, **asdict(copy), "included": int(copy.included)} for copy in duplicates]
        _insert_all(connection, DUPLICATES, copies)
        return Job(number, parent, plan, "planned")


def jobs(workspace: Workspace, *states: JobState) -> list[Job]:
    """The jobs in any of these states, by number.

    Args:
        workspace: An open workspace.
        states: The states.
    """
    query = select(JOBS).where(JOBS.c.state.in_(states)).order_by(JOBS.c.number)
    return [Job(row.number, row.parent, json.loads(row.plan), row.state) for row in workspace.rows(query)]


def set_job_state(workspace: Workspace, job: Job, state: JobState) -> None:
    """Record that a step of a job is complete.

    Args:
        workspace: An open workspace.
        job: The job.
        state: The step.
    """
    with workspace.transaction() as connection:
        _update_job(connection, job.number, state)


def finish_job(workspace: Workspace, job: Job, day: date) -> None:
    """Record that a job and its requests are done.

    Args:
        workspace: An open workspace.
        job: The job.
        day: The current date.
    """
    requests, note = requests_of(workspace, job.number), f"forgotten by {workspace.run_folder(job.number).name}"
    with workspace.transaction() as connection:
        _update_job(connection, job.number, "done")
        for request in requests:
            close_request(connection, request, "done", day, note)


def fail_job(workspace: Workspace, job: Job, reason: str) -> None:
    """Record that a job failed and wrote nothing; its requests are open again, with the reason as their note.

    Args:
        workspace: An open workspace.
        job: The job.
        reason: Why it failed.
    """
    requests = requests_of(workspace, job.number)
    with workspace.transaction() as connection:
        _update_job(connection, job.number, "failed")
        for request in requests:
            _update_request(connection, request, status="open", note=reason)


def requests_of(workspace: Workspace, job: int) -> list[int]:
    """Numbers of the requests that a job carries out.

    Args:
        workspace: An open workspace.
        job: Number of the job.
    """
    query = select(JOB_REQUESTS.c.request).where(JOB_REQUESTS.c.job == job).order_by(JOB_REQUESTS.c.request)
    return [row.request for row in workspace.rows(query)]


def job_of(workspace: Workspace, request: int) -> int | None:
    """Number of the job that carries out a request.

    Args:
        workspace: An open workspace.
        request: Number of the request.

    Returns:
        None where there is none, or it failed.
    """
    query = select(func.max(JOB_REQUESTS.c.job)).join(JOBS, JOBS.c.number == JOB_REQUESTS.c.job)
    ((job,),) = workspace.rows(query.where(JOB_REQUESTS.c.request == request, JOBS.c.state != "failed"))
    return None if job is None else int(job)


def duplicates_of(workspace: Workspace, job: int) -> list[Duplicate]:
    """Copies of what a job forgets, among the retained images.

    Args:
        workspace: An open workspace.
        job: Number of the job.
    """
    query = select(DUPLICATES).where(DUPLICATES.c.job == job).order_by(DUPLICATES.c.forgotten, DUPLICATES.c.retained)
    rows = workspace.rows(query)
    return [Duplicate(row.forgotten, row.retained, row.similarity, bool(row.included)) for row in rows]


def write_measurements(workspace: Workspace, job: int, measurements: Mapping[tuple[int, Moment], Measurement]) -> None:
    """Store the measurements before and after a job, in place of earlier ones, and set its state to checked.

    Args:
        workspace: An open workspace.
        job: Number of the job.
        measurements: By number of the request and moment.
    """
    rows = [
        {"job": job, "request": request, "moment": moment, **asdict(measurement)}
        for (request, moment), measurement in measurements.items()
    ]
    with workspace.transaction() as connection:
        connection.execute(delete(MEASUREMENTS).where(MEASUREMENTS.c.job == job))
        _insert_all(connection, MEASUREMENTS, rows)
        _update_job(connection, job, "checked")


def measurement_of(workspace: Workspace, job: int | None, request: int, moment: Moment) -> Measurement | None:
    """What was measured of a request before or after a job.

    Args:
        workspace: An open workspace.
        job: Number of the job; None for a request without one.
        request: Number of the request.
        moment: Before or after the job.

    Returns:
        None where nothing was measured.
    """
    table = MEASUREMENTS.c
    query = select(table.images, table.accuracy, table.cross_entropy)
    rows = workspace.rows(query.where(table.job == job, table.request == request, table.moment == moment))
    return Measurement(*rows[0]) if rows else None


def requests_measured_after(workspace: Workspace, job: int) -> list[int]:
    """Numbers of the requests that were measured after a job.

    Args:
        workspace: An open workspace.
        job: Number of the job.
    """
    table = MEASUREMENTS.c
    query = select(table.request).where(table.job == job, table.moment == "after").order_by(table.request)
    return [row.request for row in workspace.rows(query)]


def _read_request(connection: Connection, number: int) -> RequestRecord:
    return _as_record(connection.execute(select(REQUESTS).where(REQUESTS.c.number == number)).one())


def _as_record(row: Row[*tuple[Any, ...]]) -> RequestRecord:
    return RequestRecord(
        number=row.number,
        scope=Scope.from_json(json.loads(row.scope)),
        received=date.fromisoformat(row.received),
        deadline=date.fromisoformat(row.deadline),
        status=row.status,
        closed=None if row.closed is None else date.fromisoformat(row.closed),
        note=row.note,
    )


def _insert_one(connection: Connection, table: Table, **values: Any) -> int:
    """Insert a row and return the number it was given."""
    key = connection.execute(insert(table).values(**values)).inserted_primary_key
    assert key is not None
    return int(key[0])


def _insert_all(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    if rows:  # an empty list of rows would insert one row of defaults
        connection.execute(insert(table), rows)


def _update_request(connection: Connection, number: int, **values: Any) -> None:
    connection.execute(update(REQUESTS).where(REQUESTS.c.number == number).values(**values))


def _update_job(connection: Connection, number: int, state: JobState) -> None:
    connection.execute(update(JOBS).where(JOBS.c.number == number).values(state=state))
