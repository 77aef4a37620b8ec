"""The workspace: its stored format stays, its transactions exclude writers and not readers, its errors are clear."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
import threading
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, insert, select, update
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateTable

from fake_desk import DAY, FACTS, OPTIONS, ask, begin
from famr.desk import database
from famr.desk.chain import Budget
from famr.desk.records import all_requests, find_request, jobs, samples_of, submit_request
from famr.desk.running import run_requests
from famr.desk.schema import METADATA, SETTINGS
from famr.desk.scope import Scope
from famr.desk.summaries import recheck_after, request_summary
from famr.desk.workspace import FILE, Settings, Workspace, create_workspace, open_workspace
from famr.errors import RequestError, StorageError

FIRST_EDITION = Path(__file__).parents[1] / "fixtures/first_edition/desk"


def layout(file: Path) -> dict[str, Any]:
    """Columns (name, type, primary key), unique indexes and references of each table."""
    with sqlite3.connect(file) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        tables = {
            name: (
                [(row[1], row[2], row[5]) for row in connection.execute(f"PRAGMA table_info({name})")],
                sorted((row[2], row[3]) for row in connection.execute(f"PRAGMA index_list({name})")),
                sorted((row[2], row[3]) for row in connection.execute(f"PRAGMA foreign_key_list({name})")),
                connection.execute("SELECT strict FROM pragma_table_list WHERE name = ?", [name]).fetchone(),
            )
            for name in names
        }
        version = connection.execute("PRAGMA user_version").fetchone()
    connection.close()
    return {**tables, "version": version}


def test_a_new_database_has_the_tables_and_columns_of_the_first_edition(tmp_path: Path) -> None:
    shutil.copy(FIRST_EDITION / FILE, tmp_path / "old.sqlite")
    create_workspace(tmp_path / "new", Settings("model", FACTS, Budget()))
    new = layout(tmp_path / "new" / FILE)
    assert {"settings", "requests", "samples", "jobs", "answers", "duplicates", "looks"} < set(new)
    assert new == layout(tmp_path / "old.sqlite")


def test_a_new_database_refuses_the_values_that_the_first_edition_refused(tmp_path: Path) -> None:
    begin(tmp_path)
    connection = sqlite3.connect(tmp_path / FILE)
    for wrong in (
        "INSERT INTO requests (digest, scope, received, deadline, status) VALUES ('', '', '', '', 'lost')",
        "INSERT INTO jobs (plan, state) VALUES ('{}', 'lost')",
        "INSERT INTO samples VALUES (1, 0, 'a', 'lost', NULL, 0, NULL)",
        "INSERT INTO looks VALUES (1, 1, 'never', 0, NULL, NULL)",
        "INSERT INTO settings VALUES ('model', 1.5)",
    ):
        with pytest.raises(sqlite3.IntegrityError):
            connection.execute(wrong)
    connection.close()


def test_the_workspace_of_the_first_edition_is_read_and_continued(tmp_path: Path) -> None:
    shutil.copytree(FIRST_EDITION, tmp_path / "desk")
    with open_workspace(tmp_path / "desk") as desk:
        assert [record.id for record in all_requests(desk)][:2] == ["R-0001", "R-0002"]
        first = find_request(desk, "R-0001")
        (job,) = jobs(desk, "done")
        recorded = json.loads((desk.run_folder(job.number) / "unlearning/requests.json").read_text(encoding="utf-8"))
        assert request_summary(desk, first.number) == recorded["requests"][0]
        assert recheck_after(desk, job.number) == {}
        assert all(sample.state == "found" for sample in samples_of(desk, first.number))
        again, is_new = submit_request(desk, first.scope, [], DAY, DAY)
        assert (again, is_new) == (first, False)
        new, is_new = submit_request(desk, Scope(classes=("one more",)), [], DAY, DAY)
        assert (new.id, new.status, is_new) == ("R-0003", "open", True)


def test_a_workspace_of_a_newer_famr_is_refused(tmp_path: Path) -> None:
    begin(tmp_path)
    connection = sqlite3.connect(tmp_path / FILE)
    connection.execute("PRAGMA user_version = 2")
    connection.close()
    with pytest.raises(RequestError, match="format 2, this famr reads 1"), open_workspace(tmp_path):
        pass
    with pytest.raises(RequestError, match="format 2"):
        create_workspace(tmp_path, Settings("model", FACTS, Budget()))


def test_damaged_records_and_settings_are_storage_errors(tmp_path: Path) -> None:
    backend = begin(tmp_path)
    for number in range(200):
        ask(tmp_path, backend, Scope(names=(f"{number}.png",)))
    content = bytearray((tmp_path / FILE).read_bytes())
    content[4096 * 2 :] = b"x" * (len(content) - 4096 * 2)  # the header and the schema stay
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(StorageError, match="cannot be read"), open_workspace(tmp_path) as desk:
        all_requests(desk)
    create_workspace(tmp_path / "other", Settings("model", FACTS, Budget()))
    connection = sqlite3.connect(tmp_path / "other" / FILE)
    connection.execute("DELETE FROM settings WHERE name = 'model'")
    connection.commit()
    connection.close()
    with pytest.raises(StorageError, match="settings of the workspace are damaged"), open_workspace(tmp_path / "other"):
        pass


def test_a_transaction_that_fails_stores_nothing(tmp_path: Path) -> None:
    def fail(desk: Workspace) -> None:
        with desk.transaction() as connection:
            connection.execute(insert(SETTINGS).values(name="more", value="1"))
            raise KeyboardInterrupt

    begin(tmp_path)
    with open_workspace(tmp_path) as desk:
        with pytest.raises(KeyboardInterrupt):
            fail(desk)
        assert {row.name for row in desk.rows(select(SETTINGS))} == {"model", "data", "budget"}


def test_a_writer_excludes_writers_from_its_first_read_on_and_never_readers(tmp_path: Path) -> None:
    begin(tmp_path)
    order: list[str] = []

    def write() -> None:
        with open_workspace(tmp_path) as other, other.transaction():
            order.append("second")

    with open_workspace(tmp_path) as desk:
        with desk.transaction() as connection:  # nothing is written yet
            thread = threading.Thread(target=write)
            thread.start()
            with open_workspace(tmp_path) as reader:
                assert all_requests(reader) == []
            thread.join(timeout=0.3)
            assert thread.is_alive()
            connection.execute(update(SETTINGS).where(SETTINGS.c.name == "model").values(value='"new"'))
            with open_workspace(tmp_path) as reader:
                assert reader.settings.model == "first-model"
            order.append("first")
        thread.join(timeout=30)
    assert order == ["first", "second"]


def test_a_database_that_stays_locked_is_a_storage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(tmp_path)
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.05)
    with (
        open_workspace(tmp_path) as desk,
        desk.transaction(),
        pytest.raises(StorageError, match="cannot be read or written: database is locked"),
        open_workspace(tmp_path) as other,
    ):
        submit_request(other, Scope(classes=("a",)), [], DAY, DAY)


def test_tables_and_statements_are_valid_for_postgresql(tmp_path: Path) -> None:
    dialect = postgresql.dialect()
    tables = "".join(str(CreateTable(table).compile(dialect=dialect)) for table in METADATA.sorted_tables)
    assert "STRICT" not in tables
    assert tables.count("DOUBLE PRECISION") == 4
    assert tables.count("SERIAL") == 2
    statements: list[str] = []
    backend = begin(tmp_path)
    ask(tmp_path, backend, Scope(names=("a/0.png", "no.png")))
    with open_workspace(tmp_path) as desk:

        def compile_too(_connection: Any, statement: Any, *_: Any) -> None:
            statements.append(str(statement.compile(dialect=dialect)))

        event.listen(desk.engine, "before_execute", compile_too)
        submit_request(desk, Scope(classes=("b",)), [], DAY, date(2026, 4, 1))
        run_requests(desk, None, OPTIONS, backend, DAY)
        recheck_after(desk, 1)
    assert len({statement.split()[0] for statement in statements} & {"SELECT", "INSERT", "UPDATE", "DELETE"}) == 4


WITHOUT_SQLALCHEMY = """
import sys
sys.modules["sqlalchemy"] = None
import famr
from famr.cli.main import main
sys.argv = ["famr", *sys.argv[1:]]
main()
"""


def test_without_sqlalchemy_the_desk_names_the_extra_and_everything_else_works(tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", WITHOUT_SQLALCHEMY, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert run("--help").returncode == 0
    assert run("request", "--help").returncode == 0
    listed = run("request", "list", "-w", str(tmp_path))
    assert listed.returncode == 2
    assert "sqlalchemy" in listed.stderr
    assert "pip install 'famr[desk]'" in listed.stderr
