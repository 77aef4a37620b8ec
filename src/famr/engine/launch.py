"""How the processes of a run start and end together.

A rank that fails leaves its error in a store that all ranks reach, and ends once the other ranks have read it, as the
store may be its own. The other ranks notice that it is gone, and end with its error and its exit code. No rank waits
longer than the timeout.
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

from famr.engine.distributed import ALONE, Ranks, error_from_json, error_to_json
from famr.errors import FamrError, NumericsError, RequestError

TIMEOUT = 600.0
"""Seconds that a rank waits for another before it gives up, unless $FAMR_TIMEOUT is set."""
START_TIMEOUT = 120.0
"""Seconds in which all ranks must have started, or fewer where the timeout is shorter."""
EXIT_TIMEOUT = 5.0
"""Seconds that a rank waits at its end for the other ranks to end, or to read its error."""
ERROR_TIMEOUT = 1.0
"""Seconds in which the error of a rank that is gone must be found; it was left before the rank ended."""
POLL_INTERVAL = 0.2
"""Seconds between two checks for such an error."""
FAILURE, FAILURE_READ, ENDED = "failure", "heard", "ended"
"""Keys of the store: the first error, and how many ranks have read it or have ended."""


def launched_ranks(environment: Mapping[str, str] = os.environ) -> Ranks:
    """Which process of how many this is, by the variables of torchrun and accelerate.

    Args:
        environment: Holds WORLD_SIZE, RANK and LOCAL_RANK; without them this process is the only one.

    Raises:
        RequestError: The variables contradict each other.

    >>> launched_ranks({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"})
    Ranks(rank=3, size=4, local=1, sharded=False)
    >>> launched_ranks({})
    Ranks(rank=0, size=1, local=0, sharded=False)
    """
    values = {name: environment.get(name, default) for name, default in (("WORLD_SIZE", "1"), ("RANK", "0"))}
    values["LOCAL_RANK"] = environment.get("LOCAL_RANK", values["RANK"])
    if not all(value.isdecimal() for value in values.values()) or int(values["RANK"]) >= int(values["WORLD_SIZE"]):
        raise RequestError(
            "The launcher's variables contradict each other.",
            where=", ".join(f"{name}={value!r}" for name, value in values.items()),
            fix="Start famr with torchrun, or without these variables.",
        )
    return Ranks(int(values["RANK"]), int(values["WORLD_SIZE"]), int(values["LOCAL_RANK"]))


@contextmanager
def process_group(expected: int | None = None, *, shard: bool = False, device: str = "auto") -> Iterator[Ranks]:
    """Connect the processes that were started with this one; `ALONE` where none were.

    Args:
        expected: Number of processes there must be; a launcher that quietly started fewer is an error. None: any.
        shard: Whether weights are divided among the processes.
        device: Name of the device; `cpu` leaves NCCL out.

    Raises:
        RequestError: There are more or fewer processes than expected, or weights cannot be divided.
        FamrError: The processes did not find each other, or another one failed.
        NumericsError: Another process is gone without an error.
    """
    ranks = replace(launched_ranks(), sharded=shard)
    if ranks.size == 1:
        _check(ranks, expected)
        yield ALONE
        return
    store = _connect(ranks, device)
    listener = _Listener(store)
    try:
        _check(ranks, expected)  # only now, so that all raise it before one of them ends
        yield ranks
    except BaseException as error:
        if _is_lost_connection(error):
            raise listener.error() from error
        _leave_error(store, error_to_json(error, ranks.rank), ranks.size)
        raise
    finally:
        listener.stop()
    _wait_for_all(store, ENDED, ranks.size)
    gc.collect()  # what still refers to the group would keep its threads running while the interpreter ends
    dist.destroy_process_group()


def _check(ranks: Ranks, expected: int | None) -> None:
    if expected is not None and expected != ranks.size:
        raise RequestError(
            f"{expected} processes were asked for, and {ranks.size} started.",
            where="--processes",
            fix=f"torchrun --nproc-per-node {expected} -m famr …",
        )
    if ranks.sharded and ranks.size == 1:
        raise RequestError(
            "Weights can only be divided among several processes.", where="--shard", fix="Start famr with torchrun."
        )


def _connect(ranks: Ranks, device: str) -> Store:
    """Start the process group: gloo between CPUs, NCCL between GPUs. Returns the store for errors."""
    limit = timedelta(seconds=timeout_seconds())
    backend = "cpu:gloo,cuda:nccl" if device != "cpu" and torch.cuda.is_available() else "gloo"
    try:
        store, rank, size = next(iter(rendezvous("env://", timeout=min(limit, timedelta(seconds=START_TIMEOUT)))))
        store.set_timeout(limit)
        dist.init_process_group(backend, store=PrefixStore("famr", store), rank=rank, world_size=size, timeout=limit)
        dist.all_reduce(torch.zeros(1))  # all are here: a rank that ended at once could take the store with it
    except (RuntimeError, ValueError) as error:
        raise FamrError(
            f"The processes of this run did not find each other: {str(error).splitlines()[0]}",
            where=f"rank {ranks.rank} of {ranks.size}",
            fix="Check that the launcher started all of them, and that they reach its address.",
        ) from error
    return PrefixStore("famr-failures", store)


def timeout_seconds() -> float:
    """Seconds that a rank waits for another: $FAMR_TIMEOUT, or 600.

    Raises:
        RequestError: The variable is no number of seconds.
    """
    text = os.environ.get("FAMR_TIMEOUT", str(TIMEOUT))
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e7:
        raise RequestError(f"$FAMR_TIMEOUT must be a number of seconds, got {text!r}.", fix="FAMR_TIMEOUT=600")
    return seconds


def _wait_for_all(store: Store, key: str, size: int, own: int = 1) -> None:
    """Count this rank (`own` is 0 where its listener counts it) and wait until all are counted, or the timeout."""
    deadline = time.monotonic() + EXIT_TIMEOUT
    with suppress(RuntimeError):  # the rank that held the store is gone, so all had come
        counted = store.add(key, own)
        while counted < size and time.monotonic() < deadline:
            time.sleep(0.01)
            counted = store.add(key, 0)


def _is_lost_connection(error: BaseException) -> bool:
    """Whether an error only means that another rank is gone; gloo's errors have no class of their own."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))


def _leave_error(store: Store, error: Mapping[str, str | None], size: int) -> None:
    """Leave the error with which this rank ends, and wait until all have read it, its own listener among them."""
    with suppress(RuntimeError):  # the rank that held the store is gone
        store.compare_set(FAILURE, "", json.dumps(error))  # the first error is the one to read
    _wait_for_all(store, FAILURE_READ, size, own=0)


class _Listener:
    """A thread that looks for the error of a failing rank: the store may be gone once that rank is."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._error: FamrError | None = None
        self._stop, self._done = threading.Event(), threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        try:
            while not self._stop.wait(POLL_INTERVAL):
                if self._store.check([FAILURE]):
                    self._error = error_from_json(json.loads(self._store.get(FAILURE)))
                    self._store.add(FAILURE_READ, 1)
                    return
        except (RuntimeError, ValueError):
            return  # the rank that held the store is gone
        finally:
            self._done.set()

    def error(self) -> FamrError:
        """The error with which another rank ended, as far as is known."""
        self._done.wait(ERROR_TIMEOUT)  # a rank that holds the store and stands still never answers
        return self._error or NumericsError(
            "Another process of this run ended, or did not answer in time.",
            where="between the processes",
            fix="See its last output, and start the run again. Nothing half-written was left.",
        )

    def stop(self) -> None:
        """Stop the thread."""
        self._stop.set()
        self._done.wait(ERROR_TIMEOUT)
