"""The state of a run that is not finished, beside the folder it will write."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from famr.cli.printing import say
from famr.engine.distributed import ALONE, Ranks
from famr.errors import RequestError
from famr.runs.resume import ResumeState


def resume_state(output_dir: Path, resume: bool, ranks: Ranks = ALONE) -> ResumeState:
    """The state of a run; without `resume` an earlier one is removed. Only the first rank writes it.

    Args:
        output_dir: The run folder.
        resume: Whether to resume from the state.
        ranks: The processes of the run.

    Raises:
        RequestError: The weights are sharded, and such a run keeps no state.
    """
    state = ResumeState(output_dir.with_name(f"{output_dir.name}.unfinished"))
    if resume and ranks.sharded:
        raise RequestError(
            "A run with --shard keeps no state to resume from.", where="--resume", fix="Leave out --resume."
        )
    if not ranks.first:
        return replace(state, every=math.inf)
    if not resume:
        state.discard()
    return state


@contextmanager
def note_on_resuming(state: ResumeState, ranks: Ranks = ALONE) -> Iterator[None]:
    """Print, when a run is stopped or fails, that it can be resumed.

    Args:
        state: Of the run.
        ranks: The processes of the run; the first one prints.
    """
    try:
        yield
    except BaseException:
        if ranks.first and state.begun:
            say(f"famr: the run's last whole state is in {state.folder.name}; --resume continues from it.")
        raise
