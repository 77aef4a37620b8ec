"""Small worlds of two processes, and what each of the two does in them."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file

import famr
from conftest import alg1
from famr.cli.main import main
from famr.data.loaders import image_batches
from famr.engine.distributed import ALONE, Ranks
from famr.engine.inference import predict_batches
from famr.engine.launch import joined
from famr.errors import DataError, FamrError, RequestError
from famr.models.activations import capture_layer
from famr.targets.probe import mean_features
from small import ARCHITECTURE, ARGUMENTS, CLASSES

CPU = torch.device("cpu")
START = multiprocessing.get_context("forkserver")
FOR_THE_BENCH = ["famr.cli.bench.methods", "sklearn.datasets", "sklearn.svm"]
START.set_forkserver_preload([__name__, "timm", "famr.cli.forget", "famr.engine.fsdp", "torch._dynamo", *FOR_THE_BENCH])


class Ended(NamedTuple):
    """How a process ended: its exit code, negative for a signal, and what it had printed."""

    code: int
    out: str
    err: str


def world(folder: Path, act: Callable[..., None], *arguments: Any, stopped: int | None = None) -> list[Ended]:
    """Two processes that act together; one that was `stopped` is killed once the other has ended."""
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [START.Process(target=_be, args=(rank, port, folder, act, arguments)) for rank in range(2)]
    for process in processes:
        process.start()
    try:
        for rank, process in enumerate(processes):
            if rank != stopped:
                process.join(timeout=60)
                assert process.exitcode is not None, "it hangs"
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
            process.join()
    said = [[(folder / f"{rank}.{kind}").read_text(encoding="utf-8") for kind in ("out", "err")] for rank in range(2)]
    return [Ended(process.exitcode or 0, *texts) for process, texts in zip(processes, said, strict=True)]


def by_itself(folder: Path, arguments: list[str]) -> Ended:
    """`famr …` in one process that knows of no other."""
    process = START.Process(target=_speak, args=(0, folder, command, (arguments,)))
    process.start()
    process.join(timeout=60)
    assert process.exitcode is not None, "it hangs"
    said = [(folder / f"0.{kind}").read_text(encoding="utf-8") for kind in ("out", "err")]
    return Ended(process.exitcode, *said)


def _be(rank: int, port: int, folder: Path, act: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    os.environ |= {"MASTER_PORT": str(port), "FAMR_TIMEOUT": "20", "OMP_NUM_THREADS": "1"}
    _speak(rank, folder, act, arguments)


def _speak(rank: int, folder: Path, act: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    files = [(folder / f"{rank}.{kind}").open("w", encoding="utf-8") for kind in ("out", "err")]
    with files[0], files[1], redirect_stdout(files[0]), redirect_stderr(files[1]):
        act(rank, *arguments)


# Commands


def command(rank: int, *commands: list[str]) -> None:
    """`famr …`; where there are two, the second is that of the second rank."""
    sys.argv = ["famr", *commands[min(rank, len(commands) - 1)]]
    main()


def command_with_a_death(rank: int, dies: int, how: str, arguments: list[str]) -> None:
    """The same, but in its third step one rank is killed, sleeps on or comes upon a broken image.

    The state of the run is kept after each epoch, not only every ten seconds.
    """
    from famr.runs import resume as resuming
    from famr.unlearn import loop as optimise

    rate, steps = optimise.rate_at, [0]

    def last(*given: Any) -> float:
        steps[0] += 1
        if rank == dies and steps[0] == 3:
            if how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if how == "asleep":
                time.sleep(60)
            raise DataError("The image cannot be read.", where="cats/3.png", fix="Replace it.")
        return rate(*given)

    os.environ["FAMR_TIMEOUT"] = "2" if how == "asleep" else "20"
    optimise.rate_at = last
    resuming.ResumeState.due = lambda kept: kept.every < math.inf  # type: ignore[method-assign]
    command(rank, arguments)


# One group for many checks


def model() -> famr.Classifier:
    """A ViT of two blocks in double precision, so that what is left of a difference is a mistake."""
    arguments = {**ARGUMENTS, "depth": 2}
    made = famr.new_model(ARCHITECTURE, CLASSES, from_scratch=True, arguments=arguments)
    made.module.double()
    return made


def pairs(*sizes: int, seed: int = 0) -> list[tuple[torch.Tensor, torch.Tensor]]:
    draws = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(size, 3, 8, 8, generator=draws, dtype=torch.double),
            torch.randint(3, (size,), generator=draws),
        )
        for size in sizes
    ]


FORGET, KEPT = (5, 4, 1), (3, 6, 1)
"""Batches that two ranks cannot divide evenly; a rank may have none of its own."""
NATURAL = famr.FAMR(target="uniform", anchor="l2", strength=0.1, function_strength=1.0, epochs=3, optimiser="natural")
METHODS = {
    "the paper's": alg1(epochs=3, learning_rate=1e-2),
    "natural": NATURAL,
    "adam": replace(NATURAL, optimiser="adam", strength=1e-3, learning_rate=1e-3),
    "adamw": replace(NATURAL, optimiser="adamw", strength=1e-3, learning_rate=1e-3),
    "style": alg1(epochs=2, beta=1e-4, style_layer="blocks.0"),
    "kfac": replace(NATURAL, anchor="kfac"),
}
DIVISIBLE = ["the paper's", "natural", "adam"]


def forgotten(name: str, ranks: Ranks = ALONE) -> famr.Unlearned:
    method = METHODS[name]
    return famr.forget(
        model(),
        forget=pairs(*FORGET),
        method=replace(method, precision="fp32"),
        anchor_images=pairs(*KEPT, seed=1) if method.function_strength else None,
        style_target=pairs(*KEPT, seed=2) if method.forgets_style else None,
        device="cpu",
        ranks=ranks,
    )


def told(result: famr.Unlearned) -> list[dict[str, float]]:
    """The history without the clock."""
    rows = [asdict(row) for row in result.history]
    return [{name: value for name, value in row.items() if name != "seconds" and value is not None} for row in rows]


def features(data: str, ranks: Ranks = ALONE) -> dict[str, torch.Tensor]:
    """Predictions and features of stored images, five at a time."""
    images = famr.open_data(data).everything()
    small = famr.new_model(ARCHITECTURE, CLASSES, from_scratch=True, arguments=ARGUMENTS)
    batches = image_batches(images, small.require_preprocessing(), 5, CPU, ranks)
    said = predict_batches(small, batches(None), CPU, ranks=ranks)
    with capture_layer(small.module, "blocks.0", channels_last=False) as tap, torch.no_grad():
        found, labels = mean_features(small.module, tap, batches(None), ranks)
    return {"logits": said.logits, "targets": said.targets, "features": found, "labels": labels}


def error_of(act: Callable[[], object]) -> str:
    try:
        act()
    except FamrError as error:
        return f"{type(error).__name__}: {error}"
    return "none"


def many_checks(rank: int, folder: Path, data: str) -> None:
    """Everything that fits into one meeting; the results are left for the tests to look at."""
    with joined(2, device="cpu") as ranks:
        for name in METHODS:
            _leave(folder, rank, name, forgotten(name, ranks))
        for name in DIVISIBLE:
            _leave(folder, rank, f"{name}, in parts", forgotten(name, replace(ranks, sharded=True)))
        save_file(features(data, ranks), folder / f"features.{rank}")
        errors = {
            "other images": error_of(
                lambda: famr.forget(model(), forget=pairs(3, seed=rank), device="cpu", ranks=ranks)
            ),
            "other order": error_of(lambda: ranks.agree({"the seed": rank, "the request": 1})),
            "one fails": error_of(lambda: _fails_on(1, ranks, RequestError("Too few.", where="here", fix="Add some."))),
            "one breaks": error_of(lambda: _fails_on(0, ranks, ZeroDivisionError("by zero")))
            if rank
            else _broken(ranks),
            "too few devices": error_of(lambda: _on_one_gpu(ranks)),
            "whole layers": error_of(lambda: forgotten("kfac", replace(ranks, sharded=True))),
        }
        (folder / f"errors.{rank}").write_text(json.dumps(errors), encoding="utf-8")


def _leave(folder: Path, rank: int, name: str, result: famr.Unlearned) -> None:
    save_file(dict(result.module.state_dict()), folder / f"{name}.{rank}")
    (folder / f"{name}.{rank}.json").write_text(json.dumps(told(result)), encoding="utf-8")


def _fails_on(unlucky: int, ranks: Ranks, error: Exception) -> None:
    with ranks.together():
        if ranks.rank == unlucky:
            raise error


def _broken(ranks: Ranks) -> str:
    try:
        _fails_on(0, ranks, ZeroDivisionError("by zero"))
    except ZeroDivisionError as error:
        return str(error)
    return "none"


def _on_one_gpu(ranks: Ranks) -> None:
    torch.cuda.is_available, torch.cuda.device_count = (lambda: True), (lambda: 1)
    torch.cuda.set_device = lambda _device: None  # type: ignore[assignment]
    with ranks.together():
        ranks.place("cuda")


def close(ours: Iterable[dict[str, float]], theirs: Iterable[dict[str, float]], tolerance: float) -> bool:
    """Whether two histories tell the same."""
    rows = list(zip(ours, theirs, strict=True))
    return bool(rows) and all(
        a.keys() == b.keys() and all(math.isclose(a[k], b[k], rel_tol=tolerance, abs_tol=tolerance) for k in a)
        for a, b in rows
    )
