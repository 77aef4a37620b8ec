"""`famr` run in this very process, or in a child that something happens to; and what this process holds on to."""

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
    """How a command ended: its exit code, negative for a signal, and what it said to people."""

    code: int
    err: str


def in_process(command: list[str]) -> Ended:
    """Run a command here, so that whatever it does not give back stays with us."""
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


def forked(
    command: list[str],
    number: signal.Signals | None = None,
    after: float = 0.0,
    *,
    limit: tuple[int, int] | None = None,
) -> Ended:
    """Run a command in a child; send it a signal after some seconds, or limit one of its resources.

    The child keeps a state after every epoch, so that there is something to go on from.
    """
    sys.stdout.flush()
    with tempfile.TemporaryFile("w+", encoding="utf-8") as said:
        child = os.fork()
        if child == 0:
            _act(command, said.fileno(), limit)
        if number is not None:
            time.sleep(after)
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, number)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said.seek(0)
        return Ended(code, said.read())


def _act(command: list[str], said: int, limit: tuple[int, int] | None) -> None:
    """What a child does; it never returns."""
    code = 1
    try:
        ResumeState.due = lambda _self: True  # type: ignore[method-assign,assignment]
        if limit is not None:
            resource.setrlimit(limit[0], (limit[1], resource.RLIM_INFINITY))
        ended = in_process(command)
        code = ended.code
        with contextlib.suppress(OSError):
            os.write(said, ended.err.encode())
    finally:
        os._exit(code)


@contextlib.contextmanager
def held_by_another(place: Path) -> Iterator[None]:
    """Another process has claimed an output place, and gives it back afterwards."""
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        lock(place)
        os.write(told, b"x")
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
        os.close(told)


def memory() -> int:
    """Bytes of this process that are in memory."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


def open_files() -> int:
    """How many files, pipes and sockets this process has open."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())
