"""Independent pieces of work for several processes: each rank takes the next free piece, stages wait for each other.

A piece may take hours, so that silence means nothing. Every rank has a thread that sends its state to the others a few
times a second. A rank that is gone is noticed at once, one that makes no progress after the timeout; the other ranks
finish their current piece and end with an error.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

import torch.distributed as dist

from famr.engine.distributed import Ranks, error_from_json, error_to_json
from famr.engine.launch import timeout_seconds
from famr.errors import NumericsError

HEARTBEAT = 0.1
"""Seconds between two messages."""
SHUTDOWN = 5.0
"""Seconds in which the other ranks must have received that this one ends."""
Piece = TypeVar("Piece")


class RankState(NamedTuple):
    """The state of a rank.

    Attributes:
        stages: Stages that it has finished.
        requested: Pieces that it has requested.
        waits: Whether it has nothing to do.
        cpu_seconds: CPU time of its main thread; it stands still when the thread does.
        ends: Whether it ends.
        error: Why it ends, if it failed.
    """

    stages: int = 0
    requested: int = 0
    waits: bool = False
    cpu_seconds: float = 0.0
    ends: bool = False
    error: dict[str, str | None] | None = None


class Spread:
    """The work of all ranks, as one of them sees it.

    Args:
        ranks: The processes.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self._own = RankState()
        self._states = [RankState()] * ranks.size
        self._assigned = [0] * ranks.size
        self._next: Counter[int] = Counter()
        self._index = 0
        self._failure: Exception | None = None
        self._updated, self._send_now = threading.Condition(), threading.Event()

    def divided(self, pieces: Sequence[Piece]) -> Iterator[Piece]:
        """The pieces that fall to this rank, one by one; it ends once all ranks are done with theirs.

        Args:
            pieces: All pieces. Every rank must pass the same ones, and run the loop to its end.
        """
        if self.ranks.size == 1:
            yield from pieces
            return
        while (index := self._take()) < len(pieces):
            yield pieces[index]
            self._require_all()
        with self._updated:
            self._update(stages=self._own.stages + 1, waits=True)
            while any(state.stages < self._own.stages for state in self._states):
                self._require_all()
                self._updated.wait()
            self._update(waits=False)

    def _take(self) -> int:
        """The index of the next piece of this stage."""
        with self._updated:
            self._update(requested=self._own.requested + 1)
            while self._assigned[self.ranks.rank] < self._own.requested:
                self._require_all()
                self._updated.wait()
            return self._index

    def _assign(self, states: Sequence[RankState]) -> None:
        """Give a piece to each rank that requests one, in their order: all ranks see the same states, so that all
        assign the same."""
        for rank, state in enumerate(states):
            if state.requested > self._assigned[rank]:
                self._assigned[rank] = state.requested
                if rank == self.ranks.rank:
                    self._index = self._next[state.stages]
                self._next[state.stages] += 1

    def _require_all(self) -> None:
        """Raise if another rank is gone or ends."""
        if self._failure is not None:
            raise self._failure
        if error := next((state.error for state in self._states if state.error is not None), None):
            raise error_from_json(error)
        if any(state.ends for state in self._states):
            raise _rank_lost("Another process of this run was stopped.", "between the processes")

    def _update(self, **changes: Any) -> None:
        self._own = self._own._replace(**changes)
        self._send_now.set()

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Exchange states with the other ranks while the block runs."""
        group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_seconds()))
        thread = threading.Thread(target=self._exchange, args=(group, _clock_of_this_thread()), daemon=True)
        thread.start()
        try:
            yield
        except BaseException as error:
            self._update(error=error_to_json(error, self.ranks.rank) if isinstance(error, Exception) else None)
            raise
        finally:
            self._update(ends=True)
            thread.join(SHUTDOWN)

    def _exchange(self, group: Any, clock: int | None) -> None:
        try:
            progress = [(-1.0, 0.0)] * self.ranks.size
            while not any(state.ends for state in self._states):
                self._send_now.wait(HEARTBEAT)
                self._send_now.clear()
                cpu_seconds = time.process_time() if clock is None else time.clock_gettime(clock)
                states: list[Any] = [None] * self.ranks.size
                dist.all_gather_object(states, self._own._replace(cpu_seconds=cpu_seconds), group=group)
                with self._updated:
                    self._states = states
                    self._assign(states)
                    self._updated.notify_all()
                progress = [last_progress(state, before) for state, before in zip(states, progress, strict=True)]
                others = {rank: since for rank, (_, since) in enumerate(progress) if rank != self.ranks.rank}
                if (stalled := _stalled(others)) is not None:
                    self._fail(stalled)
                    self._update(error=error_to_json(stalled, self.ranks.rank), ends=True)  # sent in the next round
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Make the main thread raise, and wait for no rank any more."""
        with self._updated:
            self._failure = error
            self._updated.notify_all()


@contextmanager
def divide_work(ranks: Ranks) -> Iterator[Spread]:
    """Divide work among ranks.

    Args:
        ranks: The processes; one alone takes every piece.
    """
    work = Spread(ranks)
    if ranks.size == 1:
        yield work
        return
    with work.connected():
        yield work


def _clock_of_this_thread() -> int | None:
    """A clock of this thread's CPU time; None where the system has no such clock."""
    clock_of = getattr(time, "pthread_getcpuclockid", None)
    return None if clock_of is None else int(clock_of(threading.get_ident()))


def last_progress(state: RankState, before: tuple[float, float]) -> tuple[float, float]:
    """A rank's CPU time, and the moment when it last grew or the rank had nothing to do.

    Args:
        state: Of the rank.
        before: The result for its state before.
    """
    stands_still = state.cpu_seconds == before[0] and not state.waits
    return before if stands_still else (state.cpu_seconds, time.monotonic())


def _stalled(since: Mapping[int, float]) -> NumericsError | None:
    """The error for the first rank without progress for too long."""
    now, limit = time.monotonic(), timeout_seconds()
    for rank, moment in since.items():
        if now - moment > limit:
            return _rank_lost(f"A process of this run made no progress for {limit:g} seconds.", f"rank {rank}")
    return None


def _rank_lost(what: str, where: str) -> NumericsError:
    return NumericsError(what, where=where, fix="Start the run again: it resumes with what is missing.")
