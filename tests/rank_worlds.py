"""Two processes on this machine that run a function or a command together, and the functions that tests run in them."""

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
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file

import famr
from conftest import alg1
from famr.cli.main import main
from famr.data.loaders import image_batches
from famr.engine.base import Engine
from famr.engine.ddp import DistributedEngine
from famr.engine.distributed import ALONE, Ranks
from famr.engine.inference import predict_batches
from famr.engine.launch import process_group
from famr.engine.plain import PlainEngine
from famr.errors import DataError, FamrError, RequestError
from famr.models.activations import capture_layer
from famr.proxies.predictions import own_proxy
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
    """Two processes that call `act(rank, *arguments)`; the rank `stopped` is killed once the other one has ended."""
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [START.Process(target=_rank, args=(rank, port, folder, act, arguments)) for rank in range(2)]
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
    return [Ended(process.exitcode or 0, *_printed(folder, rank)) for rank, process in enumerate(processes)]


def by_itself(folder: Path, arguments: list[str]) -> Ended:
    """`famr …` in a single process."""
    process = START.Process(target=_redirected, args=(0, folder, command, (arguments,)))
    process.start()
    process.join(timeout=60)
    assert process.exitcode is not None, "it hangs"
    return Ended(process.exitcode, *_printed(folder, 0))


def _printed(folder: Path, rank: int) -> list[str]:
    return [(folder / f"{rank}.{kind}").read_text(encoding="utf-8") for kind in ("out", "err")]


def _rank(rank: int, port: int, folder: Path, act: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    os.environ |= {"MASTER_PORT": str(port), "FAMR_TIMEOUT": "20", "OMP_NUM_THREADS": "1"}
    _redirected(rank, folder, act, arguments)


def _redirected(rank: int, folder: Path, act: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    files = [(folder / f"{rank}.{kind}").open("w", encoding="utf-8") for kind in ("out", "err")]
    with files[0], files[1], redirect_stdout(files[0]), redirect_stderr(files[1]):
        act(rank, *arguments)


# Commands


def command(rank: int, *commands: list[str]) -> None:
    """`famr …`; where there are two, the second is that of the second rank."""
    sys.argv = ["famr", *commands[min(rank, len(commands) - 1)]]
    main()


def note_the_end(file: Path) -> None:
    """Create a file when this process ends step by step, as an interpreter does by itself."""
    Finalize(None, file.touch, exitpriority=0)


def noted_command(rank: int, folder: Path, arguments: list[str]) -> None:
    """`famr …`; each rank leaves the file `ended.RANK` unless it ends at once."""
    note_the_end(folder / f"ended.{rank}")
    command(rank, arguments)


def failing_command(rank: int, fails: int, how: str, arguments: list[str]) -> None:
    """The same, but in its third step the rank `fails` is killed, sleeps, or finds a broken image.

    The state of the run is written after each epoch, not only every ten seconds.
    """
    from famr.optim.sgd import SGD
    from famr.runs import resume

    rate_at, steps = SGD.rate_at, [0]

    def third_fails(*given: Any) -> float:
        steps[0] += 1
        if rank == fails and steps[0] == 3:
            if how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if how == "asleep":
                time.sleep(60)
            raise DataError("The image cannot be read.", where="cats/3.png", fix="Replace it.")
        return rate_at(*given)

    os.environ["FAMR_TIMEOUT"] = "2" if how == "asleep" else "20"
    SGD.rate_at = third_fails  # type: ignore[method-assign]
    resume.ResumeState.due = lambda state: state.every < math.inf  # type: ignore[method-assign]
    command(rank, arguments)


# Many checks in one process group


def double_model() -> famr.Classifier:
    """A ViT of two blocks in double precision, so that what is left of a difference is a mistake."""
    arguments = {**ARGUMENTS, "depth": 2}
    model = famr.new_model(ARCHITECTURE, CLASSES, from_scratch=True, arguments=arguments)
    model.module.double()
    return model


def labelled_batches(*sizes: int, seed: int = 0) -> list[tuple[torch.Tensor, torch.Tensor]]:
    draws = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(size, 3, 8, 8, generator=draws, dtype=torch.double),
            torch.randint(3, (size,), generator=draws),
        )
        for size in sizes
    ]


FORGET, RETAINED = (5, 4, 1), (3, 6, 5, 1)
"""Batches that two ranks cannot divide evenly; a rank may have none of its own, or as many of 5 as of 6."""
NATURAL = famr.FAMR(target="uniform", anchor="l2", strength=0.1, function_strength=1.0, epochs=2, optimiser="natural")
METHODS = {
    "paper": alg1(epochs=2, learning_rate=1e-2),
    "natural": NATURAL,
    "adam": replace(NATURAL, optimiser="adam", strength=1e-3, learning_rate=1e-3),
    "adamw": replace(NATURAL, optimiser="adamw", strength=1e-3, learning_rate=1e-3),
    "style": alg1(epochs=2, beta=1e-4, style_layer="blocks.0"),
    "kfac": replace(NATURAL, anchor="kfac"),
}
SHARDABLE = ["paper", "natural", "adam"]


def forget_pairs(name: str, engine: Engine) -> famr.Unlearned:
    """A run of a method on a loader's batches."""
    method = METHODS[name]
    return famr.forget(
        double_model(),
        forget=labelled_batches(*FORGET),
        method=replace(method, precision="fp32"),
        anchor_images=labelled_batches(*RETAINED, seed=1) if method.function_strength else None,
        style_target=labelled_batches(*RETAINED, seed=2) if method.forgets_style else None,
        engine=engine,
    )


def proxy_logits(engine: Engine) -> dict[str, torch.Tensor]:
    """What a proxy predicts that an engine trained on digits."""
    data = famr.open_data("digits")
    network = {"img_size": 8, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2}
    original = famr.new_model(ARCHITECTURE, data.labels, from_scratch=True, arguments=network)
    recipe = famr.ProxyRecipe(famr.Training(batch_size=32, learning_rate=1e-3), epochs=1)
    retain, forget = data.train.take(torch.arange(250)), data.train.take(torch.arange(250, 290))
    return {"logits": own_proxy(original, retain, forget, None, recipe, engine=engine).logits}


def history_of(result: famr.Unlearned) -> list[dict[str, float]]:
    """The history without the clock."""
    rows = [asdict(row) for row in result.history]
    return [{name: value for name, value in row.items() if name != "seconds" and value is not None} for row in rows]


def predicted(data: str, ranks: Ranks = ALONE) -> dict[str, torch.Tensor]:
    """Predictions on stored images and mean activations of a layer, five images at a time."""
    images = famr.open_data(data).everything()
    model = famr.new_model(ARCHITECTURE, CLASSES, from_scratch=True, arguments=ARGUMENTS)
    batches = image_batches(images, model.require_preprocessing(), 5, CPU, ranks)
    predictions = predict_batches(model, batches(None), CPU, ranks=ranks)
    rows = []
    with DistributedEngine(CPU, ranks).session(model) as session:
        own = session.predict(session.batches(images, 5))
        with capture_layer(session.model.module, "blocks.0", channels_last=False) as layer, torch.no_grad():
            for batch in session.batches(images, 5)(None):
                session.model.module(batch.images)
                means = layer.features(len(batch.images)).mean(dim=-1)
                rows.append(session.gather(means, len(batch.labels)))
    assert torch.equal(own.logits, predictions.logits)
    return {"logits": predictions.logits, "targets": predictions.targets, "features": torch.cat(rows)}


def error_of(act: Callable[[], object]) -> str:
    try:
        act()
    except FamrError as error:
        return f"{type(error).__name__}: {error}"
    return "none"


def many_checks(rank: int, folder: Path, data: str) -> None:
    """Everything that fits into one process group; the results are left for the tests to read."""
    with process_group(2, device="cpu") as ranks:
        engine, sharded = DistributedEngine(CPU, ranks), DistributedEngine(CPU, replace(ranks, sharded=True))
        for name in METHODS:
            _leave(folder, rank, name, forget_pairs(name, engine))
        for name in SHARDABLE:
            _leave(folder, rank, f"{name}, sharded", forget_pairs(name, sharded))
        save_file(proxy_logits(engine), folder / f"proxy.{rank}")
        save_file(predicted(data, ranks), folder / f"features.{rank}")
        _leave_reset(folder, rank, sharded)
        errors = {
            "other images": error_of(
                lambda: famr.forget(double_model(), forget=labelled_batches(3, seed=rank), engine=engine)
            ),
            "other order": error_of(lambda: ranks.agree({"the seed": rank, "the request": 1})),
            "one fails": error_of(lambda: _fails_on(1, ranks, RequestError("Too few.", where="here", fix="Add some."))),
            "one breaks": error_of(lambda: _fails_on(0, ranks, ZeroDivisionError("by zero")))
            if rank
            else _division_error(ranks),
            "too few devices": error_of(lambda: _on_one_gpu(ranks)),
            "whole layers": error_of(lambda: forget_pairs("kfac", sharded)),
        }
        (folder / f"errors.{rank}").write_text(json.dumps(errors), encoding="utf-8")


def _leave(folder: Path, rank: int, name: str, result: famr.Unlearned) -> None:
    assert not result.module.training
    save_file(dict(result.module.state_dict()), folder / f"{name}.{rank}")
    (folder / f"{name}.{rank}.json").write_text(json.dumps(history_of(result)), encoding="utf-8")


def _leave_reset(folder: Path, rank: int, sharded: DistributedEngine) -> None:
    """Weights that were changed and reset."""
    with sharded.session(double_model()) as session, torch.no_grad():
        for parameter in session.parameters:
            parameter.add_(1.0)
        session.reset()
        save_file(dict(session.export().module.state_dict()), folder / f"reset.{rank}")


def _fails_on(failing: int, ranks: Ranks, error: Exception) -> None:
    with ranks.fail_together():
        if ranks.rank == failing:
            raise error


def _division_error(ranks: Ranks) -> str:
    try:
        _fails_on(0, ranks, ZeroDivisionError("by zero"))
    except ZeroDivisionError as error:
        return str(error)
    return "none"


def _on_one_gpu(ranks: Ranks) -> None:
    torch.cuda.is_available, torch.cuda.device_count = (lambda: True), (lambda: 1)
    torch.cuda.set_device = lambda _device: None  # type: ignore[assignment]
    with ranks.fail_together():
        ranks.device("cuda")


def close(ours: Iterable[dict[str, float]], theirs: Iterable[dict[str, float]], tolerance: float) -> bool:
    """Whether two histories are the same up to rounding."""
    rows = list(zip(ours, theirs, strict=True))
    return bool(rows) and all(
        a.keys() == b.keys() and all(math.isclose(a[k], b[k], rel_tol=tolerance, abs_tol=tolerance) for k in a)
        for a, b in rows
    )


PLAIN = PlainEngine(CPU)
