"""`famr` commands in this process, or in a child process that is killed or limited; memory and open files."""

from __future__ import annotations

import contextlib
import io
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from famr.cli.main import main as famr_command
from famr.runs.resume import ResumeState
from famr.storage.locks import lock, release_all


class Ended(NamedTuple):
    """How a command ended: its exit code, negative for a signal, and its standard error."""

    code: int
    err: str


def run_in_process(command: list[str]) -> Ended:
    """Run a command in this process, so that whatever it does not free can be counted."""
    err = io.StringIO()
    before, sys.argv = sys.argv, ["famr", *command]
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(err):
            famr_command()
        code = 0
    except SystemExit as stopped:
        code = stopped.code if isinstance(stopped.code, int) else int(stopped.code is not None)
    finally:
        sys.argv = before
    return Ended(code, err.getvalue())


def run_in_child(
    command: list[str],
    number: signal.Signals | None = None,
    after: float = 0.0,
    *,
    limit: tuple[int, int] | None = None,
) -> Ended:
    """Run a command in a child process, without the time that imports take.

    A signal is sent after some seconds, or one resource is limited. The child saves its state after every epoch.
    """
    sys.stdout.flush()
    with tempfile.TemporaryFile("w+", encoding="utf-8") as err:
        child = os.fork()
        if child == 0:
            _child(command, err.fileno(), limit)
        if number is not None:
            time.sleep(after)
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, number)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        err.seek(0)
        return Ended(code, err.read())


def _child(command: list[str], err: int, limit: tuple[int, int] | None) -> None:
    """Run the command and exit; it never returns."""
    code = 1
    try:
        ResumeState.due = lambda _self: True  # type: ignore[method-assign,assignment]
        if limit is not None:
            resource.setrlimit(limit[0], (limit[1], resource.RLIM_INFINITY))
        ended = run_in_process(command)
        code = ended.code
        with contextlib.suppress(OSError):
            os.write(err, ended.err.encode())
    finally:
        os._exit(code)


@contextlib.contextmanager
def locked_by_another(output: Path) -> Iterator[None]:
    """Another process holds the lock of an output path."""
    ready, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        lock(output)
        os.write(write_end, b"x")
        signal.sigwait([signal.SIGTERM])
        release_all()
        os._exit(0)
    os.read(ready, 1)
    try:
        yield
    finally:
        os.kill(child, signal.SIGTERM)
        os.waitpid(child, 0)
        os.close(ready)
        os.close(write_end)


def resident_bytes() -> int:
    """Bytes of this process that are in memory."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


def open_files() -> int:
    """How many files, pipes and sockets this process has open."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())
