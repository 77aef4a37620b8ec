"""The command line in several processes: which commands may run so, and which process prints. Imports nothing heavy."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from famr.errors import RequestError

MULTI_PROCESS = ("forget", "bench", "bench methods")
"""The commands that several processes can run together."""


def is_first_process() -> bool:
    """Whether this process prints results: the first, or the only one."""
    return os.environ.get("RANK", "0") == "0"


def require_multi_process(command: str | None) -> None:
    """Refuse several processes for a command of which each would do the whole, and overwrite the other ones' output.

    Args:
        command: Name of the subcommand; None where there is none.

    Raises:
        RequestError: A launcher started several processes, and the command runs in one.
    """
    started = os.environ.get("WORLD_SIZE", "1")
    if started != "1" and command not in (None, *MULTI_PROCESS):
        raise RequestError(
            f"`famr {command}` runs in one process, and the launcher started {started}.",
            where="WORLD_SIZE",
            fix="Start it without torchrun or accelerate; they are for `famr forget` and `famr bench methods`.",
        )


@contextmanager
def exit_at_once() -> Iterator[None]:
    """End one of several processes with its exit code as soon as the block is done.

    Threads of the process group may outlive the interpreter's shutdown and abort it; the launcher would then count the
    run as failed in another way.
    """
    if os.environ.get("WORLD_SIZE", "1") == "1":
        yield
        return
    code: object = 0
    try:
        yield
    except SystemExit as ended:  # how every command ends
        code = ended.code or 0
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)
