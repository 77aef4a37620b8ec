"""Tables of the desk's database.

Table and column names are a stored format: a workspace that an earlier famr wrote opens unchanged, so `key` gives a
column its name in the code where the stored one differs.
"""

from __future__ import annotations

from sqlalchemy import REAL, CheckConstraint, Column, Double, ForeignKey, Integer, MetaData, Table, Text
from sqlalchemy.types import TypeEngine

FORMAT = 1
"""Number of this schema; a database of another format is refused."""
METADATA = MetaData()

# 64 bits in both; REAL is the only floating-point type that a STRICT table of SQLite accepts
_FLOAT: TypeEngine[float] = Double().with_variant(REAL(), "sqlite")


def _one_of(column: str, *values: str) -> CheckConstraint:
    return CheckConstraint(f"{column} IN ({', '.join(repr(value) for value in values)})")


SETTINGS = Table(
    "settings",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),  # JSON
    sqlite_strict=True,
)
"""What a workspace is about, see `Settings`."""

REQUESTS = Table(
    "requests",
    METADATA,
    Column("number", Integer, primary_key=True),
    Column("digest", Text, nullable=False, unique=True),
    Column("scope", Text, nullable=False),  # JSON
    Column("received", Text, nullable=False),  # dates as YYYY-MM-DD
    Column("deadline", Text, nullable=False),
    Column("closed", Text),
    Column("note", Text, nullable=False, server_default=""),
    Column("status", Text, nullable=False, server_default="open"),
    _one_of("status", "open", "running", "done", "nothing to do"),
    sqlite_autoincrement=True,
    sqlite_strict=True,
)
"""Deletion requests."""

SAMPLES = Table(
    "samples",
    METADATA,
    Column("request", ForeignKey("requests.number"), primary_key=True),
    Column("place", Integer, key="position", primary_key=True, autoincrement=False),
    Column("asked", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("id", Text),
    Column("images", Integer, nullable=False),
    Column("similarity", _FLOAT),
    _one_of("state", "found", "not found", "forgotten before"),
    sqlite_strict=True,
)
"""What each request names, and the result of the search for it."""

JOBS = Table(
    "jobs",
    METADATA,
    Column("number", Integer, primary_key=True),
    Column("parent", ForeignKey("jobs.number")),
    Column("plan", Text, nullable=False),  # JSON
    Column("state", Text, nullable=False),
    _one_of("state", "planned", "forgotten", "checked", "described", "done", "failed"),
    sqlite_autoincrement=True,
    sqlite_strict=True,
)
"""Runs: one job for one or more requests."""

JOB_REQUESTS = Table(
    "answers",
    METADATA,
    Column("job", ForeignKey("jobs.number"), primary_key=True),
    Column("request", ForeignKey("requests.number"), primary_key=True),
    sqlite_strict=True,
)
"""Which requests a job carries out."""

DUPLICATES = Table(
    "duplicates",
    METADATA,
    Column("job", ForeignKey("jobs.number"), primary_key=True),
    Column("forgotten", Text, primary_key=True),
    Column("retained", Text, primary_key=True),
    Column("similarity", _FLOAT),
    Column("included", Integer, nullable=False),  # 0 or 1
    sqlite_strict=True,
)
"""Copies of what a job forgets, among the images that are retained."""

MEASUREMENTS = Table(
    "looks",
    METADATA,
    Column("job", ForeignKey("jobs.number"), primary_key=True),
    Column("request", ForeignKey("requests.number"), primary_key=True),
    Column("moment", Text, primary_key=True),
    Column("images", Integer, nullable=False),
    Column("accuracy", _FLOAT),
    Column("cross_entropy", _FLOAT),
    _one_of("moment", "before", "after"),
    sqlite_strict=True,
)
"""Predictions on the images of a request before and after a job."""
