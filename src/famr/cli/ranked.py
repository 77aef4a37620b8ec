"""The command line in several processes: which commands may, and who speaks. Imports nothing heavy."""

from __future__ import annotations

import os

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
