"""The table of faults is complete, its tests exist, and the document agrees with them."""

from __future__ import annotations

import ast

from fault_table import CHANGED, DOCUMENT, ELSEWHERE, FAULTS, OPEN, TESTS, document, rows_of, written_seen


def test_every_fault_has_a_test_or_is_open_with_a_reason() -> None:
    assert list(FAULTS) == list(range(1, 55))
    tests = rows_of()
    assert [row for row in FAULTS if row not in tests and row not in OPEN] == []
    assert set(tests) | set(OPEN) | set(CHANGED) <= set(FAULTS)
    assert all(reason for reason in (*OPEN.values(), *CHANGED.values()))


def test_every_test_that_the_table_names_exists() -> None:
    for name in (name for names in rows_of().values() for name in names):
        file, _, test = name.partition("::")
        tree = ast.parse(next(TESTS.rglob(file)).read_text(encoding="utf-8"))
        assert test in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, name


def test_every_fault_that_is_tested_here_has_an_outcome() -> None:
    observed = written_seen()
    for row, names in rows_of().items():
        if any(name.startswith("test_faults") for name in names):
            assert observed[row], f"fault {row} has no outcome; run `make faults`"
        else:
            assert row in ELSEWHERE


def test_the_document_is_written_from_the_table() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == document(written_seen()), "run `make faults`"
