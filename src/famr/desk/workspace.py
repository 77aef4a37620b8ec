"""The workspace: a folder with one SQLite file of records and the runs that answer them.

    desk.sqlite     requests, what was found of them, jobs, and what was measured after each
    runs/run-0001   a run folder for each job that was carried out

Every change is a transaction; a process that dies leaves the last one. The records name samples of persons: keep the
folder as safe as the data.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from famr.desk.lineage import Budget
from famr.errors import RequestError, StorageError

FILE = "desk.sqlite"
FORMAT = 1
SCHEMA = """
CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE requests (
  number INTEGER PRIMARY KEY AUTOINCREMENT, digest TEXT NOT NULL UNIQUE, scope TEXT NOT NULL,
  received TEXT NOT NULL, deadline TEXT NOT NULL, closed TEXT, note TEXT NOT NULL DEFAULT '',
  status TEXT NOT NULL DEFAULT 'open' CHECK (status IN ('open', 'running', 'done', 'nothing to do'))
) STRICT;
CREATE TABLE samples (
  request INTEGER NOT NULL REFERENCES requests, place INTEGER NOT NULL, asked TEXT NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('found', 'not found', 'forgotten before')),
  id TEXT, images INTEGER NOT NULL, similarity REAL, PRIMARY KEY (request, place)
) STRICT;
CREATE TABLE jobs (
  number INTEGER PRIMARY KEY AUTOINCREMENT, parent INTEGER REFERENCES jobs, plan TEXT NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('planned', 'forgotten', 'checked', 'described', 'done', 'failed'))
) STRICT;
CREATE TABLE answers (
  job INTEGER NOT NULL REFERENCES jobs, request INTEGER NOT NULL REFERENCES requests, PRIMARY KEY (job, request)
) STRICT;
CREATE TABLE duplicates (
  job INTEGER NOT NULL REFERENCES jobs, forgotten TEXT NOT NULL, retained TEXT NOT NULL, similarity REAL,
  included INTEGER NOT NULL, PRIMARY KEY (job, forgotten, retained)
) STRICT;
CREATE TABLE looks (
  job INTEGER NOT NULL REFERENCES jobs, request INTEGER NOT NULL REFERENCES requests,
  moment TEXT NOT NULL CHECK (moment IN ('before', 'after')), images INTEGER NOT NULL, accuracy REAL,
  cross_entropy REAL, PRIMARY KEY (job, request, moment)
) STRICT;
"""


@dataclass(frozen=True)
class Settings:
    """What a workspace is about: the model it began with, the data, and how much a chain of runs may cost."""

    model: str
    data: Mapping[str, Any]
    budget: Budget

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        limits = {"retained_loss": self.budget.retained_loss, "drift": self.budget.drift}
        return {"model": self.model, "data": dict(self.data), "budget": limits}


@dataclass(frozen=True, eq=False)
class Workspace:
    """An open workspace."""

    folder: Path
    connection: sqlite3.Connection
    settings: Settings

    @contextmanager
    def change(self) -> Iterator[sqlite3.Connection]:
        """A transaction: all of the block, or nothing."""
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            yield self.connection
        except BaseException:
            self.connection.execute("ROLLBACK")
            raise
        self.connection.execute("COMMIT")

    def run_folder(self, job: int) -> Path:
        """Where the run of a job lies, or will lie."""
        return self.folder / "runs" / f"run-{job:04d}"

    def model_after(self, job: int | None) -> str:
        """What a job left behind; without one, the model that the workspace began with."""
        return self.settings.model if job is None else str(self.run_folder(job))

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Only one process at a time carries out jobs; the lock goes with the process."""
        try:
            handle = os.open(self.folder / "running.lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StorageError(
                "The workspace cannot be written to.", where=str(self.folder), fix="Check who owns it."
            ) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            raise StorageError(
                "Another process carries out requests of this workspace.",
                where=str(self.folder),
                fix="Wait for it, and run the command again.",
            ) from error
        try:
            yield
        finally:
            os.close(handle)


@contextmanager
def open_workspace(folder: Path) -> Iterator[Workspace]:
    """Open a workspace that is there."""
    if not (folder / FILE).is_file():
        raise RequestError(
            "There is no workspace here.",
            where=str(folder),
            fix="Name another with --workspace, or begin one: famr request new --model RUN --data SPEC …",
        )
    with _connected(folder) as connection:
        found = {name: json.loads(value) for name, value in connection.execute("SELECT name, value FROM settings")}
        settings = Settings(found["model"], found["data"], Budget(**found["budget"]))
        yield Workspace(folder, connection, settings)


def create_workspace(folder: Path, settings: Settings) -> None:
    """Begin a workspace in a folder that holds none; of two who try at the same time, one wins."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError("The workspace cannot be made.", where=str(folder), fix="Name another folder.") from error
    with _connected(folder, new=True) as connection:
        connection.execute("BEGIN IMMEDIATE")
        if connection.execute("PRAGMA user_version").fetchone()[0] == 0:
            for statement in SCHEMA.split(";\n"):
                connection.execute(statement)
            rows = [(name, json.dumps(value)) for name, value in settings.to_json().items()]
            connection.executemany("INSERT INTO settings VALUES (?, ?)", rows)
            connection.execute(f"PRAGMA user_version = {FORMAT}")
        connection.execute("COMMIT")


@contextmanager
def _connected(folder: Path, new: bool = False) -> Iterator[sqlite3.Connection]:
    """A connection whose changes reach the disk; anything that is wrong with the file is said in words."""
    path = folder / FILE
    try:
        with closing(sqlite3.connect(path, isolation_level=None, timeout=30)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA foreign_keys = ON")
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version != FORMAT and not (new and version == 0):
                raise RequestError(
                    f"The workspace has format {version}, this famr reads {FORMAT}.",
                    where=str(path),
                    fix="Use the famr that wrote it, or begin another workspace.",
                )
            yield connection
    except sqlite3.DatabaseError as error:
        raise StorageError(
            f"The records cannot be read or written: {error}.", where=str(path), fix="Restore the file from a copy."
        ) from error
