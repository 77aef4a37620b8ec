"""Requests and jobs as rows: written once, read back as they were."""

from __future__ import annotations

import difflib
import json
import sqlite3
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from typing import Any, Literal

from famr.desk.lineage import Look
from famr.desk.scope import Forgotten, Sample, Scope
from famr.desk.workspace import Workspace
from famr.errors import RequestError

Status = Literal["open", "running", "done", "nothing to do"]
State = Literal["planned", "forgotten", "checked", "described", "done", "failed"]
Moment = Literal["before", "after"]


@dataclass(frozen=True)
class Record:
    """A deletion request."""

    number: int
    scope: Scope
    received: date
    deadline: date
    status: Status
    closed: date | None
    note: str

    @property
    def id(self) -> str:
        """What people call it."""
        return f"R-{self.number:04d}"

    @property
    def is_closed(self) -> bool:
        """Whether there is nothing left to do."""
        return self.status in ("done", "nothing to do")


@dataclass(frozen=True)
class Duplicate:
    """A forgotten image and its copy among those that stay; `similarity` is None for the same pixels."""

    forgotten: str
    retained: str
    similarity: float | None
    included: bool
    """Whether the copy was forgotten too."""


@dataclass(frozen=True)
class Job:
    """One run for one or more requests: planned, carried out step by step, done."""

    number: int
    parent: int | None
    """The job before it in the chain."""
    plan: Mapping[str, Any]
    """The request as `famr.Request` writes it, the method, the seed."""
    state: State


def submit(
    workspace: Workspace, scope: Scope, samples: Sequence[Sample], received: date, deadline: date
) -> tuple[Record, bool]:
    """Record a request; one with the same content is recorded once. Also: whether it is new."""
    with workspace.change() as rows:
        known = rows.execute("SELECT number FROM requests WHERE digest = ?", [scope.digest()]).fetchone()
        if known is not None:
            return _record(rows, known[0]), False
        number = rows.execute(
            "INSERT INTO requests (digest, scope, received, deadline) VALUES (?, ?, ?, ?)",
            [scope.digest(), json.dumps(scope.to_json()), received.isoformat(), deadline.isoformat()],
        ).lastrowid
        assert number is not None
        write_samples(rows, number, samples)
        return _record(rows, number), True


def write_samples(rows: sqlite3.Connection, request: int, samples: Sequence[Sample]) -> None:
    """What was found of a request, in the place of what was found before."""
    rows.execute("DELETE FROM samples WHERE request = ?", [request])
    rows.executemany(
        "INSERT INTO samples VALUES (?, ?, ?, ?, ?, ?, ?)",
        [
            (request, place, each.asked, each.state, each.id, each.images, each.similarity)
            for place, each in enumerate(samples)
        ],
    )


def _record(rows: sqlite3.Connection, number: int) -> Record:
    columns = "number, scope, received, deadline, status, closed, note"
    row = rows.execute(f"SELECT {columns} FROM requests WHERE number = ?", [number]).fetchone()
    closed = None if row[5] is None else date.fromisoformat(row[5])
    scope = Scope.from_json(json.loads(row[1]))
    return Record(row[0], scope, date.fromisoformat(row[2]), date.fromisoformat(row[3]), row[4], closed, row[6])


def all_requests(workspace: Workspace) -> list[Record]:
    """Every request, first first: by their numbers, whatever a clock said."""
    numbers = workspace.connection.execute("SELECT number FROM requests ORDER BY number").fetchall()
    found = [_record(workspace.connection, number) for (number,) in numbers]
    for record in found:
        if record.closed is not None and record.closed < record.received:
            warnings.warn(
                f"{record.id} was closed on {record.closed}, before it was received on {record.received}: a clock was "
                "wrong or went backwards, or the date given was. Numbers tell the order, dates do not.",
                stacklevel=2,
            )
    return found


def find_request(workspace: Workspace, id_: str) -> Record:
    """A request by its id."""
    known = {record.id: record for record in all_requests(workspace)}
    if id_.upper() in known:
        return known[id_.upper()]
    near = difflib.get_close_matches(id_.upper(), list(known), n=3)
    raise RequestError(
        f"There is no request {id_!r}." + (f" Did you mean {' or '.join(near)}?" if near else ""),
        where=f"{len(known)} requests in {workspace.folder}",
        fix="List them with `famr request list`.",
    )


def samples_of(workspace: Workspace, request: int) -> list[Sample]:
    """What was found of a request."""
    rows = workspace.connection.execute(
        "SELECT asked, state, id, images, similarity FROM samples WHERE request = ? ORDER BY place", [request]
    )
    return [Sample(*row) for row in rows]


def close(rows: sqlite3.Connection, request: int, status: Status, day: date, note: str) -> None:
    """Nothing is left to do for a request."""
    rows.execute(
        "UPDATE requests SET status = ?, closed = ?, note = ? WHERE number = ?",
        [status, day.isoformat(), note, request],
    )


def forgotten_so_far(workspace: Workspace) -> Forgotten:
    """What the requests that are done have made the chain forget."""
    rows = workspace.connection.execute(
        "SELECT samples.asked, samples.id FROM samples JOIN requests ON requests.number = samples.request "
        "WHERE requests.status = 'done' AND samples.state = 'found'"
    ).fetchall()
    included = workspace.connection.execute(
        "SELECT duplicates.retained FROM duplicates JOIN jobs ON jobs.number = duplicates.job "
        "WHERE jobs.state = 'done' AND duplicates.included"
    )
    ids = {id_ for _, id_ in rows if id_ is not None} | {id_ for (id_,) in included}
    return Forgotten({asked for asked, id_ in rows if id_ is None}, ids)


def new_job(
    workspace: Workspace,
    parent: int | None,
    plan: Mapping[str, Any],
    found: Mapping[int, Sequence[Sample]],
    duplicates: Iterable[Duplicate],
) -> Job:
    """Plan a run for some requests, with what was found of each; from here on they are running."""
    with workspace.change() as rows:
        number = rows.execute(
            "INSERT INTO jobs (parent, plan, state) VALUES (?, ?, 'planned')", [parent, json.dumps(plan)]
        ).lastrowid
        assert number is not None
        for request, samples in found.items():
            write_samples(rows, request, samples)
            rows.execute("INSERT INTO answers VALUES (?, ?)", [number, request])
            rows.execute("UPDATE requests SET status = 'running', note = '' WHERE number = ?", [request])
        rows.executemany(
            "INSERT INTO duplicates VALUES (?, ?, ?, ?, ?)",
            [(number, each.forgotten, each.retained, each.similarity, int(each.included)) for each in duplicates],
        )
        return Job(number, parent, plan, "planned")


def jobs(workspace: Workspace, *states: State) -> list[Job]:
    """The jobs in any of these states, first first."""
    marks = ", ".join("?" for _ in states)
    rows = workspace.connection.execute(
        f"SELECT number, parent, plan, state FROM jobs WHERE state IN ({marks}) ORDER BY number", states
    )
    return [Job(number, parent, json.loads(plan), state) for number, parent, plan, state in rows]


def set_state(workspace: Workspace, job: Job, state: State) -> None:
    """A step of a job is behind it."""
    with workspace.change() as rows:
        rows.execute("UPDATE jobs SET state = ? WHERE number = ?", [state, job.number])


def finish(workspace: Workspace, job: Job, day: date) -> None:
    """A job and its requests are done."""
    with workspace.change() as rows:
        rows.execute("UPDATE jobs SET state = 'done' WHERE number = ?", [job.number])
        for request in answered_by(workspace, job.number):
            close(rows, request, "done", day, f"forgotten by {workspace.run_folder(job.number).name}")


def give_up(workspace: Workspace, job: Job, why: str) -> None:
    """A job failed and wrote nothing; its requests are open again and say why."""
    with workspace.change() as rows:
        rows.execute("UPDATE jobs SET state = 'failed' WHERE number = ?", [job.number])
        for request in answered_by(workspace, job.number):
            rows.execute("UPDATE requests SET status = 'open', note = ? WHERE number = ?", [why, request])


def answered_by(workspace: Workspace, job: int) -> list[int]:
    """The numbers of the requests that a job answers."""
    rows = workspace.connection.execute("SELECT request FROM answers WHERE job = ? ORDER BY request", [job])
    return [number for (number,) in rows]


def job_of(workspace: Workspace, request: int) -> int | None:
    """The job that answers a request, unless it failed."""
    row = workspace.connection.execute(
        "SELECT max(job) FROM answers JOIN jobs ON jobs.number = answers.job WHERE request = ? AND state != 'failed'",
        [request],
    ).fetchone()
    return None if row is None else row[0]


def duplicates_of(workspace: Workspace, job: int) -> list[Duplicate]:
    """Copies of what a job forgot."""
    rows = workspace.connection.execute(
        "SELECT forgotten, retained, similarity, included FROM duplicates WHERE job = ? ORDER BY forgotten, retained",
        [job],
    )
    return [Duplicate(first, second, similarity, bool(included)) for first, second, similarity, included in rows]


def write_looks(workspace: Workspace, job: int, looks: Mapping[tuple[int, Moment], Look]) -> None:
    """What was measured of requests after a job, and of its own also before it."""
    with workspace.change() as rows:
        rows.execute("DELETE FROM looks WHERE job = ?", [job])
        rows.executemany(
            "INSERT INTO looks VALUES (?, ?, ?, ?, ?, ?)",
            [(job, request, moment, *asdict(look).values()) for (request, moment), look in looks.items()],
        )
        rows.execute("UPDATE jobs SET state = 'checked' WHERE number = ?", [job])


def look_of(workspace: Workspace, job: int | None, request: int, moment: Moment) -> Look | None:
    """What was measured of a request around a job."""
    row = workspace.connection.execute(
        "SELECT images, accuracy, cross_entropy FROM looks WHERE job = ? AND request = ? AND moment = ?",
        [job, request, moment],
    ).fetchone()
    return None if row is None else Look(*row)
