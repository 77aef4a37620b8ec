"""Independent pieces of work for several processes: whoever is free takes the next one, and stages wait for each other.

A piece may take hours, so that silence says nothing about a rank. Each has a thread that tells the others a few times a
second how far it is and whether it is free. One that is gone is noticed at once, one that stands still after the
timeout; the others finish the piece that they are at, and end with an error.
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

BEAT = 0.1
"""Seconds between two signs of life."""
PARTING = 5.0
"""Seconds in which the others must have heard that this rank goes."""
Piece = TypeVar("Piece")


class Sign(NamedTuple):
    """How far a rank is."""

    stages: int = 0
    """Stages that it has finished."""
    asked: int = 0
    """Pieces that it has asked for."""
    waits: bool = False
    worked: float = 0.0
    """What its main thread has had of a CPU, in seconds: what stands still has none."""
    ends: bool = False
    words: dict[str, str | None] | None = None
    """Why it ends, where it failed."""


class Spread:
    """The work of all ranks, seen from one of them."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self._own = Sign()
        self._heard = [Sign()] * ranks.size
        self._given = [0] * ranks.size
        self._next: Counter[int] = Counter()
        self._place = 0
        self._lost: Exception | None = None
        self._news, self._hurry = threading.Condition(), threading.Event()

    def divided(self, pieces: Sequence[Piece]) -> Iterator[Piece]:
        """The pieces that fall to this rank, one by one; it ends once all ranks are done with theirs.

        Every rank must give the same pieces, and run the loop to its end.
        """
        if self.ranks.size == 1:
            yield from pieces
            return
        while (place := self._take()) < len(pieces):
            yield pieces[place]
            self._require_all()
        with self._news:
            self._say(stages=self._own.stages + 1, waits=True)
            while any(sign.stages < self._own.stages for sign in self._heard):
                self._require_all()
                self._news.wait()
            self._say(waits=False)

    def _take(self) -> int:
        """The place of the next piece of this stage that nobody has."""
        with self._news:
            self._say(asked=self._own.asked + 1)
            while self._given[self.ranks.rank] < self._own.asked:
                self._require_all()
                self._news.wait()
            return self._place

    def _give(self, every: Sequence[Sign]) -> None:
        """A piece for each rank that asks, in their order: all hear the same, so all know who has which."""
        for rank, sign in enumerate(every):
            if sign.asked > self._given[rank]:
                self._given[rank] = sign.asked
                if rank == self.ranks.rank:
                    self._place = self._next[sign.stages]
                self._next[sign.stages] += 1

    def _require_all(self) -> None:
        """An error where another rank is gone, or goes."""
        if self._lost is not None:
            raise self._lost
        if words := next((sign.words for sign in self._heard if sign.words is not None), None):
            raise error_from_json(words)
        if any(sign.ends for sign in self._heard):
            raise _gone("Another process of this run was stopped.", "between the processes")

    def _say(self, **changes: Any) -> None:
        self._own = self._own._replace(**changes)
        self._hurry.set()

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Tell the others of this rank, and listen to them, while the block runs."""
        group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_seconds()))
        thread = threading.Thread(target=self._listen, args=(group, _clock_of_this_thread()), daemon=True)
        thread.start()
        try:
            yield
        except BaseException as error:
            self._say(words=error_to_json(error, self.ranks.rank) if isinstance(error, Exception) else None)
            raise
        finally:
            self._say(ends=True)
            thread.join(PARTING)

    def _listen(self, group: Any, clock: int | None) -> None:
        try:
            moved = [(-1.0, 0.0)] * self.ranks.size
            while not any(sign.ends for sign in self._heard):
                self._hurry.wait(BEAT)
                self._hurry.clear()
                worked = time.process_time() if clock is None else time.clock_gettime(clock)
                every: list[Any] = [None] * self.ranks.size
                dist.all_gather_object(every, self._own._replace(worked=worked), group=group)
                with self._news:
                    self._heard = every
                    self._give(every)
                    self._news.notify_all()
                moved = [_last_moved(sign, before) for sign, before in zip(every, moved, strict=True)]
                others = {rank: since for rank, (_, since) in enumerate(moved) if rank != self.ranks.rank}
                if (still := _standing_still(others)) is not None:
                    self._lose(still)
                    self._say(words=error_to_json(still, self.ranks.rank), ends=True)  # the next round tells all of it
        except Exception as error:
            self._lose(error)

    def _lose(self, error: Exception) -> None:
        """The main thread raises it, and waits for nobody any more."""
        with self._news:
            self._lost = error
            self._news.notify_all()


@contextmanager
def spread(ranks: Ranks) -> Iterator[Spread]:
    """Work that these ranks do together."""
    work = Spread(ranks)
    if ranks.size == 1:
        yield work
        return
    with work.heard():
        yield work


def _clock_of_this_thread() -> int | None:
    """A clock that runs while this thread has a CPU; None where the system has no such clock."""
    found = getattr(time, "pthread_getcpuclockid", None)
    return None if found is None else int(found(threading.get_ident()))


def _last_moved(sign: Sign, before: tuple[float, float]) -> tuple[float, float]:
    """What a rank has worked, and when it last had worked more than before, or had nothing to do."""
    return before if sign.worked == before[0] and not sign.waits else (sign.worked, time.monotonic())


def _standing_still(since: Mapping[int, float]) -> NumericsError | None:
    """What to say of the first rank that has not moved for too long."""
    now, limit = time.monotonic(), timeout_seconds()
    for rank, moment in since.items():
        if now - moment > limit:
            return _gone(f"A process of this run has stood still for {limit:g} seconds.", f"rank {rank}")
    return None


def _gone(what: str, where: str) -> NumericsError:
    return NumericsError(what, where=where, fix="Start the run again: it goes on with what is missing.")
