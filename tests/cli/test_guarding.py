"""Errors of other kinds, and what they become."""

from __future__ import annotations

import signal
import sys

import pytest

from famr.cli.guarding import Stopped, as_famr_error, guarded, stopped_by_signals
from famr.cli.printing import Result
from famr.errors import GateError, NumericsError, RequestError


def test_an_import_error_of_an_optional_package_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rfc8785", None)
    with pytest.raises(ImportError) as caught:
        import rfc8785  # noqa: F401
    error = as_famr_error(caught.value)
    assert isinstance(error, RequestError)
    assert error.fix == "pip install 'famr[evidence]'"


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("CUDA out of memory. Tried to allocate 2 GiB.")])
def test_too_little_memory_is_exit_code_5(error: Exception) -> None:
    assert isinstance(as_famr_error(error), NumericsError)


def test_any_other_error_is_a_bug_with_exit_code_1() -> None:
    error = as_famr_error(ImportError("no", name="famr.none"))
    assert error.exit_code == 1
    assert "ImportError" in error.what


def test_a_signal_stops_once_and_the_handlers_return() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Stopped), stopped_by_signals():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(("returned", "code"), [(None, 0), (0, 0), (2, 2), (Result({}, lambda: None), 0)])
def test_the_exit_code_is_that_of_the_outcome(returned: object, code: int) -> None:
    with pytest.raises(SystemExit) as stopped:
        guarded(lambda: returned, as_json=False, debug=False)
    assert stopped.value.code == code


def test_a_result_with_a_failed_gate_is_printed_before_the_error(capsys: pytest.CaptureFixture[str]) -> None:
    result = Result({}, lambda: print("a table"), GateError("Too much was lost."))
    with pytest.raises(SystemExit) as stopped:
        guarded(lambda: result, as_json=False, debug=False)
    printed = capsys.readouterr()
    assert (stopped.value.code, printed.out, printed.err) == (7, "a table\n", "famr: Too much was lost.\n")


def test_debug_adds_the_traceback_and_keeps_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise RequestError("No.")

    with pytest.raises(SystemExit) as stopped:
        guarded(fail, as_json=False, debug=True)
    assert stopped.value.code == 2
    assert "Traceback" in capsys.readouterr().err
