"""The workspace: a folder with the database of the desk and the runs that carry out its requests.

    desk.sqlite     requests, their samples, jobs, and the measurements of each job
    runs/run-0001   a run folder for each job that was carried out

Every change is a transaction; a process that dies leaves the last one. The records name samples of persons: keep the
folder as safe as the data.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from sqlalchemy import Connection, Engine, Executable, Row, insert, select

from famr.desk.chain import Budget
from famr.desk.database import open_database, read_format, write_format, write_transaction
from famr.desk.schema import FORMAT, METADATA, SETTINGS
from famr.errors import RequestError, StorageError

FILE = "desk.sqlite"


@dataclass(frozen=True)
class Settings:
    """What a workspace is about.

    Attributes:
        model: The model that the first run starts from, as for `load_model`.
        data: How its training data is opened, as in a run.json.
        budget: What the chain of runs may cost.
    """

    model: str
    data: Mapping[str, Any]
    budget: Budget

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        limits = {"retained_loss": self.budget.retained_loss, "drift": self.budget.drift}
        return {"model": self.model, "data": dict(self.data), "budget": limits}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Settings:
        """The inverse of `to_json`.

        Args:
            values: What `to_json` returned.
        """
        return cls(values["model"], values["data"], Budget(**values["budget"]))


@dataclass(frozen=True, eq=False)
class Workspace:
    """An open workspace.

    Attributes:
        folder: Its folder.
        engine: Connections to its database.
        settings: What it is about.
    """

    folder: Path
    engine: Engine
    settings: Settings

    def transaction(self) -> AbstractContextManager[Connection]:
        """A write transaction: all of the block is stored, or nothing; other writers wait."""
        return write_transaction(self.engine)

    def rows(self, query: Executable) -> Sequence[Row[*tuple[Any, ...]]]:
        """The rows of a query, read at one moment.

        Args:
            query: A select.
        """
        with self.engine.connect() as connection:
            return connection.execute(query).all()

    def run_folder(self, job: int) -> Path:
        """Path of the run folder of a job, whether or not it has been written.

        Args:
            job: Number of the job.
        """
        return self.folder / "runs" / f"run-{job:04d}"

    def model_after(self, job: int | None) -> str:
        """The model that a job wrote.

        Args:
            job: Number of the job; None for the model of the settings, which no job wrote.
        """
        return self.settings.model if job is None else str(self.run_folder(job))

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Allow one process at a time to carry out jobs; the lock ends with the process.

        Raises:
            StorageError: Another process carries out jobs, or the folder cannot be written to.
        """
        file_lock = FileLock(self.folder / "running.lock", mode=0o600, thread_local=False)
        try:
            file_lock.acquire(blocking=False)
        except Timeout as error:
            raise StorageError(
                "Another process carries out requests of this workspace.",
                where=str(self.folder),
                fix="Wait for it, and run the command again.",
            ) from error
        except OSError as error:
            raise StorageError(
                "The workspace cannot be written to.", where=str(self.folder), fix="Check who owns it."
            ) from error
        try:
            yield
        finally:
            file_lock.release()


@contextmanager
def open_workspace(folder: Path) -> Iterator[Workspace]:
    """Open a workspace for the length of a block.

    Args:
        folder: Its folder.

    Raises:
        RequestError: There is no workspace, or it has another format.
        StorageError: Its records are damaged, or a statement in the block fails.
    """
    if not (folder / FILE).is_file():
        raise RequestError(
            "There is no workspace here.",
            where=str(folder),
            fix="Name another with --workspace, or begin one: famr request new --model RUN --data SPEC …",
        )
    with open_database(folder / FILE) as engine:
        with engine.connect() as connection:
            _require_format(read_format(connection), folder / FILE)
            stored = connection.execute(select(SETTINGS.c.name, SETTINGS.c.value)).all()
        try:
            settings = Settings.from_json({row.name: json.loads(row.value) for row in stored})
        except (ValueError, KeyError, TypeError) as error:
            raise StorageError(
                "The settings of the workspace are damaged.",
                where=str(folder / FILE),
                fix="Restore the file from a copy.",
            ) from error
        yield Workspace(folder, engine, settings)


def create_workspace(folder: Path, settings: Settings) -> None:
    """Create a workspace; one that exists keeps its settings, also where two processes create it at the same time.

    Args:
        folder: The folder; created where it is missing.
        settings: What the workspace is about.

    Raises:
        RequestError: The workspace exists in another format.
        StorageError: The folder or its records cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError("The workspace cannot be created.", where=str(folder), fix="Name another folder.") from error
    with open_database(folder / FILE) as engine, write_transaction(engine) as connection:
        if (stored := read_format(connection)) != 0:
            _require_format(stored, folder / FILE)
            return
        METADATA.create_all(connection, checkfirst=False)
        rows = [{"name": name, "value": json.dumps(value)} for name, value in settings.to_json().items()]
        connection.execute(insert(SETTINGS), rows)
        write_format(connection, FORMAT)


def _require_format(stored: int, file: Path) -> None:
    if stored != FORMAT:
        raise RequestError(
            f"The workspace has format {stored}, this famr reads {FORMAT}.",
            where=str(file),
            fix="Use the famr that wrote it, or begin another workspace.",
        )
