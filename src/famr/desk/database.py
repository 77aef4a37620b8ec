"""Connections to the desk's database. Everything that is particular to SQLite is here; queries are portable SQL.

A server database would need an engine of its own here, with serializable write transactions, and a stored format.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError

from famr.errors import StorageError

BUSY_SECONDS = 30
"""How long a transaction waits for that of another process."""
PRAGMAS = ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON")
"""Readers do not wait for a writer; what is committed is on the disk; references are checked."""
WRITE_OPTION = "famr_write"


@contextmanager
def open_database(file: Path) -> Iterator[Engine]:
    """An engine on an SQLite file, for the length of a block.

    Args:
        file: The file; created where it is missing.

    Raises:
        StorageError: A statement in the block fails: the file is damaged, locked for too long, or cannot be written.
    """
    engine = create_engine(URL.create("sqlite", database=str(file)), connect_args={"timeout": BUSY_SECONDS})
    event.listen(engine, "connect", _configure)
    event.listen(engine, "begin", _begin)
    try:
        yield engine
    except DBAPIError as error:
        raise StorageError(
            f"The records cannot be read or written: {error.orig}.",
            where=str(file),
            fix="Restore the file from a copy.",
        ) from error
    finally:
        engine.dispose()


@contextmanager
def write_transaction(engine: Engine) -> Iterator[Connection]:
    """A transaction that no other writer interrupts: all of the block is stored, or nothing.

    It holds the write lock from its beginning, so that what the block reads is still true when it writes.

    Args:
        engine: An engine of `open_database`.

    Yields:
        A connection in the transaction.
    """
    with engine.execution_options(**{WRITE_OPTION: True}).begin() as connection:
        yield connection


def read_format(connection: Connection) -> int:
    """The number of the schema in the database; 0 for an empty one.

    Args:
        connection: A connection to it.
    """
    return int(connection.exec_driver_sql("PRAGMA user_version").scalar_one())


def write_format(connection: Connection, number: int) -> None:
    """Store the number of the schema.

    Args:
        connection: A connection in a write transaction.
        number: The number.
    """
    connection.exec_driver_sql(f"PRAGMA user_version = {number:d}")


def _configure(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # the driver starts no transaction: `_begin` does
    for pragma in PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.get_execution_options().get(WRITE_OPTION) else "BEGIN")
