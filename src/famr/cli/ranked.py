"""The command line in several processes: which commands may, and who speaks. Imports nothing heavy."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from famr.errors import RequestError

SHARED = ("forget", "bench", "bench methods")
"""The commands that several processes can share."""


def speaks() -> bool:
    """Whether this process prints results: the first, or the only one."""
    return os.environ.get("RANK", "0") == "0"


def require_sharing(command: str | None) -> None:
    """Several processes would all do the whole of any other command, and write over each other."""
    started = os.environ.get("WORLD_SIZE", "1")
    if started != "1" and command not in (None, *SHARED):
        raise RequestError(
            f"`famr {command}` runs in one process, and the launcher started {started}.",
            where="WORLD_SIZE",
            fix="Start it without torchrun or accelerate; they are for `famr forget` and `famr bench methods`.",
        )


@contextmanager
def parting() -> Iterator[None]:
    """One of several processes ends at once when it is done, with its exit code: an interpreter that ends step by step
    may be aborted by threads of the group that outlive it, and the run would count as failed in another way."""
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
