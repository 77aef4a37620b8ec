"""Errors, exit codes and signals: how every command ends.

A first SIGINT or SIGTERM ends the command in order: no half-written file stays. A second one ends it at once.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TextIO

import typer

from famr.cli.printing import Result, print_json, say
from famr.errors import FamrError, NumericsError, RequestError, is_out_of_memory
from famr.extras import require_extra
from famr.storage.locks import release_all

INTERRUPTED = 130
EXTRAS = {
    "matplotlib": "report",
    "jinja2": "report",
    "cryptography": "evidence",
    "rfc8785": "evidence",
    "sqlalchemy": "desk",
    "onnx": "onnx",
    "onnxruntime": "onnx",
    "onnxscript": "onnx",
    "datasets": "datasets",
}
"""The extra of famr that installs an optional package."""
UsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""typer exports no other of its kind, and has it from click or from its own copy of click."""


class Stopped(BaseException):  # no `Exception`: code that handles errors must not handle this
    """A signal asked the command to end."""


class Interrupted(FamrError):  # noqa: N818  # its name is the kind that `--json` prints
    """How a stopped command is reported."""

    exit_code = INTERRUPTED


def guarded(command: Callable[[], object], *, as_json: bool, debug: bool) -> NoReturn:
    """Run a command, print its result or its error, and end the process with the exit code.

    Args:
        command: Returns a `Result`; an exit code, where only help was printed; None on all ranks but the first.
        as_json: Print exactly one JSON object on standard output, whatever happens.
        debug: Show the traceback of an error, too.

    Raises:
        SystemExit: Always.
    """
    result: object = None
    error: FamrError | None = None
    try:
        with stopped_by_signals():
            result = command()
            if as_json and isinstance(result, Result):
                json.dumps(result.content, allow_nan=False)  # a NaN is an error of the command
    except (Stopped, KeyboardInterrupt):
        error = Interrupted("stopped. Nothing half-written was left; the inputs are unchanged.")
    except Exception as raised:
        if debug:
            traceback.print_exc()
        error = raised if isinstance(raised, FamrError) else as_famr_error(raised)
    finally:
        release_all()
    sys.exit(print_outcome(result, error, as_json))


def print_outcome(result: object, error: FamrError | None, as_json: bool) -> int:
    """Print a result, an error, or a result with the gate that it did not meet.

    Args:
        result: What the command returned.
        error: What it raised.
        as_json: Print one object: the result's content, with the error under `error`.

    Returns:
        The exit code.
    """
    if error is not None:
        result = None
    elif isinstance(result, Result):
        error = result.failed
    if isinstance(result, Result) and not as_json:
        _write(result.show)
    if error is not None:
        say(f"famr: {error}")
    if as_json and (error is not None or isinstance(result, Result)):
        content = dict(result.content) if isinstance(result, Result) else {}
        if error is not None:
            content["error"] = error_content(error)
        _write(lambda: print_json(content))
    if error is not None:
        return error.exit_code
    return result if isinstance(result, int) else 0


def _write(show: Callable[[], None]) -> None:
    """Print to standard output, whose reader may be gone."""
    try:
        show()
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the interpreter complains when it ends


def error_content(error: FamrError) -> dict[str, Any]:
    """An error as plain values.

    Args:
        error: With what is wrong, where, and what to do.
    """
    where_and_fix = {"what": error.what, "where": error.where, "fix": error.fix}
    return {"kind": type(error).__name__, "exit_code": error.exit_code, **where_and_fix}


def as_famr_error(error: Exception) -> FamrError:
    """An error of another kind as one of famr's: a missing extra, too little memory, or a bug.

    Args:
        error: Of any kind.
    """
    if is_out_of_memory(error):
        return NumericsError(
            "There is not enough memory.",
            where=type(error).__name__,
            fix="Use a smaller --batch-size or a smaller model, or --device cpu. Nothing was written.",
        )
    package = str(error.name).partition(".")[0] if isinstance(error, ImportError) else ""
    if package in EXTRAS:
        try:
            require_extra(package, EXTRAS[package])
        except RequestError as missing:
            return missing
    first = str(error).splitlines()[0] if str(error) else "no message"
    return FamrError(
        f"Something that famr did not foresee went wrong: {type(error).__name__}: {first}",
        where="in famr itself; the inputs are unchanged, and nothing was written",
        fix="Run it again as `famr --debug …` and report what it shows.",
    )


def parsed(app: Callable[..., object]) -> Callable[[], object]:
    """The command line as a function without arguments, whose mistakes are errors of famr.

    Args:
        app: The typer app; it reads `sys.argv`.
    """

    def command() -> object:
        try:
            return app(prog_name="famr", standalone_mode=False)
        except UsageError as error:
            if type(error).__name__ == "NoArgsIsHelpError":
                error.show()  # type: ignore[attr-defined]  # a group without a command shows its help
                return RequestError.exit_code
            raise usage_error(error) from error
        except typer.Abort as error:  # a prompt was left without an answer
            raise Stopped from error

    return command


def usage_error(error: Exception) -> RequestError:
    """A mistake in the command line: what, in which command, and where its help is.

    Args:
        error: Of typer's kind.
    """
    context = getattr(error, "ctx", None)
    command = "famr" if context is None else str(context.command_path)
    what = str(error.format_message())  # type: ignore[attr-defined]
    return RequestError(what if what.endswith((".", ")")) else f"{what}.", where=command, fix=f"{command} --help")


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Turn the first SIGINT or SIGTERM into `Stopped`; after it another ends the process at once."""

    def stop(number: int, _frame: FrameType | None) -> None:
        for either in (signal.SIGINT, signal.SIGTERM):
            signal.signal(either, stop_now)
        raise Stopped(number)

    def stop_now(_number: int, _frame: FrameType | None) -> None:
        release_all()
        os._exit(INTERRUPTED)

    if threading.current_thread() is not threading.main_thread():  # only the main thread receives signals
        yield
        return
    before = {each: signal.signal(each, stop) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def show_own_warnings(
    message: Warning | str,
    category: type[Warning],  # noqa: ARG001
    filename: str,
    lineno: int,  # noqa: ARG001
    file: TextIO | None = None,  # noqa: ARG001
    line: str | None = None,  # noqa: ARG001
) -> None:
    """Print famr's own warnings as notes, and none of other libraries; a replacement for `warnings.showwarning`.

    Args:
        message: The warning.
        category: Of the warning.
        filename: File that warned.
        lineno: Line that warned.
        file: Where Python would print it.
        line: Source of the line.
    """
    if Path(filename).is_relative_to(Path(__file__).parents[1]):
        say(f"famr: note: {message}")
