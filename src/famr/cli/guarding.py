"""Between a command and the shell: exit codes for what was foreseen and for what was not, and for signals.

A first SIGINT or SIGTERM ends the command in order: nothing half-written stays. A second ends it at once.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TextIO

from famr.cli.printing import print_error, say
from famr.errors import FamrError, NumericsError, is_out_of_memory
from famr.storage.locks import release_all

STOPPED = 130
UNFORESEEN = 1


class Stopped(BaseException):  # it is no error, and nothing that catches errors may catch it
    """The user, or the system, wants the command to end."""


def guarded(command: Callable[[], object], *, as_json: bool, debug: bool) -> None:
    """Run a command; end the process with its exit code, and with words where it failed."""
    try:
        with stopped_by_signals():
            command()
    except FamrError as error:
        if debug:
            raise
        tell(error, as_json)
        sys.exit(error.exit_code)
    except (Stopped, KeyboardInterrupt):
        say("famr: stopped. Nothing half-written was left; the inputs are unchanged.")
        sys.exit(STOPPED)
    except Exception as error:
        if debug:
            raise
        told = foreseeable(error)
        tell(told, as_json)
        sys.exit(told.exit_code)
    finally:
        release_all()


def tell(error: FamrError, as_json: bool) -> None:
    """An error in its words; where whoever listened is gone, nobody is told, and nothing else goes wrong."""
    try:
        print_error(error, as_json)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the interpreter complains when it ends


def foreseeable(error: Exception) -> FamrError:
    """Words for an error that nobody gave words to."""
    if is_out_of_memory(error):
        return NumericsError(
            "There is not enough memory.",
            where=type(error).__name__,
            fix="Use a smaller --batch-size or a smaller model, or --device cpu. Nothing was written.",
        )
    first = str(error).splitlines()[0] if str(error) else "no message"
    return FamrError(
        f"Something that famr did not foresee went wrong: {type(error).__name__}: {first}",
        where="in famr itself; the inputs are unchanged, and nothing was written",
        fix="Run it again as `famr --debug …` and report what it shows.",
    )


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Turn SIGINT and SIGTERM into `Stopped`, once; after that the process ends at once."""

    def stop(number: int, _frame: FrameType | None) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, stop_now)
        raise Stopped(number)

    def stop_now(_number: int, _frame: FrameType | None) -> None:
        release_all()
        os._exit(STOPPED)

    if threading.current_thread() is not threading.main_thread():  # only the main thread hears signals
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
    """famr's own warnings are notes to the user; those of the libraries below are not the user's concern."""
    if Path(filename).is_relative_to(Path(__file__).parents[1]):
        say(f"famr: note: {message}")
