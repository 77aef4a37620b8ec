"""How the processes of a run meet, and how they part: in order, or all of them when one of them fails.

A rank that fails leaves its words in a store that all reach, and ends once the others have read them, as the store may
be its own; the others notice that it is gone, and end with its words and its exit code. Nobody waits longer than the
timeout.
"""

from __future__ import annotations

import gc
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from famr.engine.distributed import ALONE, Ranks, from_words, in_words
from famr.errors import FamrError, NumericsError, RequestError

TIMEOUT = 600.0
"""Seconds that a rank waits for the others before it gives them up; $FAMR_TIMEOUT says otherwise."""
MEETING = 120.0
"""Seconds in which all must have come, or fewer where the timeout is shorter."""
FAILURE = "failure"
HEARD = "heard"
ENDED = "ended"
PARTING = 5.0
"""Seconds in which all others must have come to their end, too, or have heard why there is one."""
LAST_WORDS = 1.0
"""Seconds in which the words of a rank that is gone must be found; it left them before it went."""
BEAT = 0.2
"""Seconds between two looks for such words."""


def started(environment: Mapping[str, str] = os.environ) -> Ranks:
    """Which process of how many the launcher says this is.

    >>> started({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"})
    Ranks(rank=3, size=4, local=1, sharded=False)
    >>> started({})
    Ranks(rank=0, size=1, local=0, sharded=False)
    """
    said = {name: environment.get(name, default) for name, default in (("WORLD_SIZE", "1"), ("RANK", "0"))}
    said["LOCAL_RANK"] = environment.get("LOCAL_RANK", said["RANK"])
    if not all(value.isdecimal() for value in said.values()) or int(said["RANK"]) >= int(said["WORLD_SIZE"]):
        raise RequestError(
            "The launcher's variables do not make sense.",
            where=", ".join(f"{name}={value!r}" for name, value in said.items()),
            fix="Start famr with torchrun, or without these variables.",
        )
    return Ranks(int(said["RANK"]), int(said["WORLD_SIZE"]), int(said["LOCAL_RANK"]))


@contextmanager
def joined(asked: int | None = None, *, shard: bool = False, device: str = "auto") -> Iterator[Ranks]:
    """Meet the processes that were started with this one; ALONE where none were.

    `asked`: how many there are to be; a launcher that quietly started fewer is an error.
    """
    ranks = replace(started(), sharded=shard)
    if ranks.size == 1:
        _require(ranks, asked)
        yield ALONE
        return
    store = _meet(ranks, device)
    others = _Listener(store)
    try:
        _require(ranks, asked)  # only now, so that all say it before one of them ends
        yield ranks
    except BaseException as error:
        if _is_loss_of_others(error):
            raise others.last_words() from error
        _leave_words(store, in_words(error, ranks.rank), ranks.size)
        raise
    finally:
        others.stop()
    _wait_for_all(store, ENDED, ranks.size)
    gc.collect()  # what still refers to the group would keep its threads at work while the interpreter ends
    dist.destroy_process_group()


def _require(ranks: Ranks, asked: int | None) -> None:
    """Compare what was asked for with what was started."""
    if asked is not None and asked != ranks.size:
        raise RequestError(
            f"{asked} processes were asked for, and {ranks.size} started.",
            where="--processes",
            fix=f"torchrun --nproc-per-node {asked} -m famr …",
        )
    if ranks.sharded and ranks.size == 1:
        raise RequestError(
            "Weights can only be divided among several processes.", where="--shard", fix="Start famr with torchrun."
        )


def _meet(ranks: Ranks, device: str) -> Store:
    """Messages between CPUs by gloo, between GPUs by NCCL."""
    limit = timedelta(seconds=timeout())
    backend = "cpu:gloo,cuda:nccl" if device != "cpu" and torch.cuda.is_available() else "gloo"
    try:
        store, rank, size = next(iter(rendezvous("env://", timeout=min(limit, timedelta(seconds=MEETING)))))
        store.set_timeout(limit)
        dist.init_process_group(backend, store=PrefixStore("famr", store), rank=rank, world_size=size, timeout=limit)
        dist.all_reduce(torch.zeros(1))  # all are here: one that left at once would take the store from the others
    except (RuntimeError, ValueError) as error:
        raise FamrError(
            f"The processes of this run did not find each other: {str(error).splitlines()[0]}",
            where=f"rank {ranks.rank} of {ranks.size}",
            fix="See that the launcher started all of them, and that they reach its address.",
        ) from error
    return PrefixStore("famr-failures", store)


def timeout() -> float:
    """Seconds that a rank waits for the others, as the environment says."""
    text = os.environ.get("FAMR_TIMEOUT", str(TIMEOUT))
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e7:
        raise RequestError(f"$FAMR_TIMEOUT must be a number of seconds, got {text!r}.", fix="FAMR_TIMEOUT=600")
    return seconds


def _wait_for_all(store: Store, what: str, size: int, own: int = 1) -> None:
    """Count this rank, unless its `own` part is counted elsewhere, and wait until all are; not for one that is gone."""
    deadline = time.monotonic() + PARTING
    with suppress(RuntimeError):  # the one that kept the store is gone, so all had come
        counted = store.add(what, own)
        while counted < size and time.monotonic() < deadline:
            time.sleep(0.01)
            counted = store.add(what, 0)


def _is_loss_of_others(error: BaseException) -> bool:
    """Whether an error is only that another rank is gone; gloo's errors have no class of their own."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))


def _leave_words(store: Store, words: Mapping[str, str | None], size: int) -> None:
    """Say why this rank ends, and wait until all have heard it, its own listener among them."""
    with suppress(RuntimeError):  # the one that kept the store is gone
        store.compare_set(FAILURE, "", json.dumps(words))  # the first to fail is the one to hear
    _wait_for_all(store, HEARD, size, own=0)


class _Listener:
    """Looks for the words of a rank that fails, beside the work: the store may be gone when that rank is."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._heard: FamrError | None = None
        self._enough, self._done = threading.Event(), threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        try:
            while not self._enough.wait(BEAT):
                if self._store.check([FAILURE]):
                    self._heard = from_words(json.loads(self._store.get(FAILURE)))
                    self._store.add(HEARD, 1)
                    return
        except (RuntimeError, ValueError):
            return  # the one that kept the store is gone
        finally:
            self._done.set()

    def last_words(self) -> FamrError:
        """Why another rank is gone, as far as it could say."""
        self._done.wait(LAST_WORDS)  # one that keeps the store and stands still never answers
        return self._heard or NumericsError(
            "Another process of this run ended, or did not answer in time.",
            where="between the processes",
            fix="See what that one said last, and start the run again. Nothing half-written was left.",
        )

    def stop(self) -> None:
        """Listen no more."""
        self._enough.set()
        self._done.wait(LAST_WORDS)
