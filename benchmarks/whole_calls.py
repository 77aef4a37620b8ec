"""Seconds of whole calls of `famr.forget`, in a fresh process and warm, with parts of the engine switched off.

    python -m benchmarks.whole_calls --output benchmarks/results/whole_calls-h200.json
    python -m benchmarks.whole_calls --output build/dry.json --device cpu --sizes tiny --images 8 --repeats 1

A class is forgotten by the default method in 10 epochs, from a ViT with random weights; the images are made up and wait
in memory. A fresh call is the first one of its process: imports, model and images are there, CUDA is not initialised.
Warm calls follow it in the same process. The clock is read after the device has finished.

The processes of a round (one model, every engine) prepare at once and then measure one after the other, so that each
has the machine to itself. A measurement that is in the output already is not made again. `--engines reference` times
`PlainEngine` as it is: its bf16 and its attention kernels are not those of the CUDA engine.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

import famr
from benchmarks.cells import log, write_results
from benchmarks.markdown import machine_line, markdown_table, page_head
from benchmarks.paper.setting import SIZES
from famr.data import Data, Images
from famr.data.loaders import Batch, Batches, evaluation_batch_size
from famr.engine.base import Engine, Session
from famr.engine.devices import Precision
from famr.engine.pick import pick_engine
from famr.engine.plain import PlainEngine
from famr.runs.folder import environment
from famr.unlearn.forget import forget

EPOCHS = 10
CLASSES = 100
FORGOTTEN = 0
IMAGES_PER_CLASS = 20
"""Retained images of each remaining class: as many as the default method's function-space anchor reads."""
HELD_OUT = 500
POOL = 512
"""Different images of each set; a larger set repeats them, as the time does not depend on what they show."""
GRID = 4
TINY = "tiny"
TINY_VIT = {"img_size": 16, "patch_size": 4, "embed_dim": 64, "depth": 4, "num_heads": 2}
MODELS = {"Ti": "ViT-Ti", "B": "ViT-B", "L": "ViT-L", TINY: "tiny ViT"}
ENGINES = {
    "all": "all parts",
    "no-graphs": "without graph replay",
    "no-prefix": "also without the prefix cache",
    "reference": "reference engine",
}


# Engines


class Reduced:
    """Another object with some methods overridden; everything else is passed on to it."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class ReducedSession(Reduced):
    """A session without graph replay or without the prefix cache.

    Args:
        inner: The session.
        step_size: Images of a step.
        graphs: Whether steps may be replayed.
        prefix_cache: Whether passes may start from cached activations.
    """

    def __init__(self, inner: Session, step_size: int | None, *, graphs: bool, prefix_cache: bool) -> None:
        super().__init__(inner)
        self._step_size, self._graphs, self._prefix_cache = step_size, graphs, prefix_cache

    def run(self, step: Callable[[Batch], Tensor], batch: Batch) -> Tensor:
        """See `Session.run`."""
        return cast(Session, self._inner).run(step, batch) if self._graphs else step(batch)

    def batches(self, images: Images, size: int) -> Batches:
        """See `Session.batches`."""
        session = cast(Session, self._inner)
        return session.batches(images, size) if self._prefix_cache else session.image_batches(images, size)

    def evaluation_batches(self, images: Images) -> Batches:
        """See `Session.evaluation_batches`."""
        session = cast(Session, self._inner)
        if self._prefix_cache:
            return session.evaluation_batches(images)
        return session.image_batches(images, evaluation_batch_size(session.device, self._step_size))


class ReducedEngine(Reduced):
    """An engine that opens reduced sessions.

    Args:
        inner: The engine.
        graphs: Whether steps may be replayed.
        prefix_cache: Whether passes may start from cached activations.
    """

    def __init__(self, inner: Engine, *, graphs: bool, prefix_cache: bool) -> None:
        super().__init__(inner)
        self._graphs, self._prefix_cache = graphs, prefix_cache

    @contextmanager
    def session(
        self, original: famr.Classifier, precision: Precision, step_size: int | None = None
    ) -> Iterator[Session]:
        """See `Engine.session`."""
        with cast(Engine, self._inner).session(original, precision, step_size) as session:
            reduced = ReducedSession(session, step_size, graphs=self._graphs, prefix_cache=self._prefix_cache)
            yield cast(Session, reduced)


def engine_by_name(name: str, device: str) -> Engine:
    """The engine of one column of the table."""
    engine = pick_engine(device)
    if name == "all":
        return engine
    if name == "reference":
        return PlainEngine(engine.device)
    return cast(Engine, ReducedEngine(engine, graphs=False, prefix_cache=name == "no-graphs"))


# What is forgotten


def new_vit(size: str, seed: int) -> famr.Classifier:
    """A ViT with random weights for 100 classes; images come in the size that it takes."""
    arguments = TINY_VIT if size == TINY else {}
    spec = SIZES["ViT-Ti" if size == TINY else MODELS[size]]
    labels = [str(number) for number in range(CLASSES)]
    model = famr.new_model(spec, labels, arguments=arguments, from_scratch=True, seed=seed)
    preprocessing = model.require_preprocessing()
    return replace(model, preprocessing=replace(preprocessing, resize=preprocessing.crop))


def made_up_data(model: famr.Classifier, forget: int, retained: int, seed: int) -> Data:
    """Images of noise over a grid of colours, one grid for each class."""
    generator = np.random.default_rng(seed)
    preprocessing = model.require_preprocessing()
    colours = generator.integers(0, 128, (CLASSES, GRID, GRID, preprocessing.channels), dtype=np.uint8)
    remaining = np.arange(POOL) % (CLASSES - 1) + 1
    pools = [
        _noisy(colours[classes], preprocessing.crop, generator) for classes in (np.zeros(POOL, dtype=int), remaining)
    ]

    def images(name: str, forget: int, retained: int) -> Images:
        def decode(row: int) -> Image.Image:
            pool, index = (0, row) if row < forget else (1, row - forget)
            return Image.fromarray(pools[pool][index % POOL].squeeze())

        targets = np.concatenate([np.zeros(forget, dtype=int), remaining[np.arange(retained) % POOL]])
        ids = [f"{name}/{row}" for row in range(forget + retained)]
        return Images.from_source(decode, ids, torch.from_numpy(targets))

    train, test = images("train", forget, retained), images("test", 0, HELD_OUT)
    return Data("made up", tuple(str(number) for number in range(CLASSES)), train, test, mirror=False)


def _noisy(colours: NDArray[np.uint8], size: tuple[int, int], generator: np.random.Generator) -> NDArray[np.uint8]:
    """Each grid of colours enlarged, under as much noise: (images, height, width, channels)."""
    height, width = size
    rows, columns = np.arange(height) * GRID // height, np.arange(width) * GRID // width
    large = colours[:, rows][:, :, columns]
    return large + generator.integers(0, 128, large.shape, dtype=np.uint8)


# The process that is measured


class Call(NamedTuple):
    """One call: its seconds, those of its steps, and what it came to."""

    seconds: float
    seconds_of_steps: float
    trials: int
    forget_accuracy: float | None
    drift: float


def measure(task: dict[str, Any], wait: Callable[[], object]) -> dict[str, Any]:
    """Prepare, wait for the start, then time one fresh and several warm calls."""
    torch.set_num_threads(task["threads"])
    model = new_vit(task["size"], task["seed"])
    data = made_up_data(model, task["images"], task["retained"], task["seed"])
    splits = famr.split(data, famr.Request(classes=[data.labels[FORGOTTEN]]))
    wait()
    calls = [timed_call(model, splits, task) for _ in range(1 + task["warm"])]
    device = pick_engine(task["device"]).device
    return {
        "fresh": calls[0]._asdict(),
        "warm": [call._asdict() for call in calls[1:]],
        "peak_memory": torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
        "environment": {**environment(str(device)), "cuda": torch.version.cuda},
    }


def timed_call(model: famr.Classifier, splits: famr.Splits, task: dict[str, Any]) -> Call:
    """A call of `famr.forget` by the clock, from the original on the CPU to the unlearned model on the CPU."""
    monitor, seed = famr.Monitor(track_retain=False), task["seed"]
    _synchronise()
    start = time.perf_counter()
    engine = engine_by_name(task["engine"], task["device"])  # a fresh call looks for the GPU, too
    result = forget(model, splits, famr.FAMR(effort="quick", epochs=EPOCHS), engine=engine, seed=seed, monitor=monitor)
    _synchronise()
    seconds = time.perf_counter() - start
    accuracy = result.history[-1].forget_accuracy
    return Call(seconds, result.seconds, max(1, len(result.trials)), accuracy, result.drift)


def _synchronise() -> None:
    """Wait for the GPU; where CUDA is not initialised there is nothing to wait for."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()


def measure_here() -> None:
    """In a process of its own: the task comes on standard input, then a line that starts the clock."""
    task = json.loads(sys.stdin.readline())
    results, sys.stdout = sys.stdout, sys.stderr  # only results go to the pipe

    def wait() -> None:
        print("ready", file=results, flush=True)
        if not sys.stdin.readline():
            raise SystemExit("The process that started this one is gone.")

    print(json.dumps(measure(task, wait)), file=results, flush=True)


class Measurement:
    """A process that measures one engine on one model."""

    def __init__(self, task: dict[str, Any], timeout: float) -> None:
        self.task, self.timeout = task, timeout
        self._messages: IO[str] = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.whole_calls", "--measure"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._messages,
            text=True,
            cwd=Path(__file__).parents[1],
        )
        self._send(json.dumps(task))

    def wait_until_ready(self) -> None:
        """Wait until it is prepared; one that fails is noticed when it is to run."""
        assert self._process.stdout is not None
        if select.select([self._process.stdout], [], [], self.timeout)[0]:
            self._process.stdout.readline()

    def run(self) -> dict[str, Any]:
        """Start the clock; the result, or the error."""
        self._send("go")
        try:
            output, _ = self._process.communicate(timeout=self.timeout)
            if self._process.returncode == 0:
                result: dict[str, Any] = json.loads(output.splitlines()[-1])
                return result
            self._messages.seek(0)
            lines = self._messages.read().strip().splitlines()
            return {"error": lines[-1] if lines else f"exit code {self._process.returncode}"}
        except subprocess.TimeoutExpired:
            return {"error": f"not done after {self.timeout:g} s"}
        finally:
            self.stop()

    def stop(self) -> None:
        """End the process if it runs, and close what was open."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()
        self._messages.close()

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return  # it has ended; `run` says why


# All measurements


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what the output does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="the result file")
    parser.add_argument("--device", default="auto", help="auto, cuda or cpu")
    parser.add_argument("--sizes", nargs="+", default=["Ti", "B", "L"], choices=list(MODELS))
    parser.add_argument("--engines", nargs="+", default=["all", "no-graphs", "no-prefix"], choices=list(ENGINES))
    parser.add_argument("--images", type=int, default=500, help="images of the class that is forgotten")
    parser.add_argument(
        "--retained", type=int, default=IMAGES_PER_CLASS * (CLASSES - 1), help="images of the remaining classes"
    )
    parser.add_argument("--repeats", type=int, default=3, help="fresh processes of each model and engine")
    parser.add_argument("--warm", type=int, default=3, help="warm calls in each process")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="CPU threads of torch")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for each process to prepare, and to run")
    parser.add_argument("--commit", help="of famr; default: that of the working tree, where there is one")
    options = parser.parse_args(arguments)
    shared = ("device", "images", "retained", "warm", "threads", "seed")
    settings = {name: getattr(options, name) for name in shared} | {"epochs": EPOCHS, "classes": CLASSES}
    content: dict[str, Any] = {"benchmark": "whole calls", "settings": settings, "environment": None, "cells": []}
    if options.output.is_file():
        content = json.loads(options.output.read_text(encoding="utf-8"))
        if content["settings"] != settings:
            parser.error(f"{options.output} holds measurements with other settings: {content['settings']}")
    commit = options.commit or current_commit()
    for size in options.sizes:
        for repeat in range(options.repeats):
            turn = repeat % len(options.engines)
            order = options.engines[turn:] + options.engines[:turn]  # no engine is always the first
            missing = [engine for engine in order if not _has(content["cells"], size, engine, repeat)]
            tasks = [{"size": size, "engine": engine, **settings} for engine in missing]
            for task, result in zip(tasks, _measure_round(tasks, options.timeout), strict=True):
                content["environment"] = result.pop("environment", content["environment"])
                key = {"model": MODELS[size], "engine": task["engine"], "repeat": repeat, "commit": commit}
                content["cells"].append(key | result)
                write_results(options.output, content)
                seconds = [call["seconds"] for call in (result["fresh"], *result["warm"])] if "fresh" in result else []
                log(f"{key}: {result.get('error') or [round(each, 3) for each in seconds]}")


def _has(cells: Sequence[dict[str, Any]], size: str, engine: str, repeat: int) -> bool:
    key = (MODELS[size], engine, repeat)
    return any((cell["model"], cell["engine"], cell["repeat"]) == key and "error" not in cell for cell in cells)


def _measure_round(tasks: Sequence[dict[str, Any]], timeout: float) -> Iterator[dict[str, Any]]:
    """Prepare all at once, then measure one after the other."""
    measurements: list[Measurement] = []
    try:
        measurements += [Measurement(task, timeout) for task in tasks]
        for measurement in measurements:
            measurement.wait_until_ready()
        for measurement in measurements:
            yield measurement.run()
    finally:
        for measurement in measurements:
            measurement.stop()


def current_commit() -> str | None:
    """The commit of the working tree, marked where there are changes; None without git."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
        changes = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit.stdout.strip() + (" with changes" if changes.stdout.strip() else "")


# The page


def whole_calls_page(name: str, content: dict[str, Any]) -> str:
    """Medians by model and engine, then each engine's figures."""
    settings = content["settings"]
    cells = [cell for cell in content["cells"] if "error" not in cell]
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for cell in cells:
        groups.setdefault((cell["model"], cell["engine"]), []).append(cell)
    models = list(dict.fromkeys(model for model, _ in groups))
    engines = [engine for engine in ENGINES if any(engine == found for _, found in groups)]
    table = [("model", *(ENGINES[engine] for engine in engines))]
    table += [(model, *(_medians(groups.get((model, engine), [])) for engine in engines)) for model in models]
    details: list[tuple[str, ...]] = [
        ("model", "engine", "fresh", "warm", "steps, warm", "trials", "For-Acc %", "drift", "peak memory, GiB")
    ]
    details += [(model, ENGINES[engine], *_details(group)) for (model, engine), group in groups.items()]
    commits = ", ".join(dict.fromkeys(str(cell["commit"] or "not known") for cell in cells))
    processes = max((len(group) for group in groups.values()), default=0)
    parts = [
        *page_head("Whole calls of famr.forget", name),
        f"- {settings['images']} images of one class of {settings['classes']} forgotten by the default method in "
        f"{settings['epochs']} epochs; {settings['retained']} retained and {HELD_OUT} held-out images; made-up images "
        f"in memory, random weights, seed {settings['seed']}\n"
        f"- Medians over {processes} processes; the first call of a process / {settings['warm']} further calls in each "
        f"of them, in seconds\n- Commit: {commits}\n- {machine_line(content)}",
        "## Seconds of a call, fresh process / warm",
        markdown_table(table),
    ]
    parts += ["## Each engine", "Ranges over all calls; the rest are medians of warm calls.", markdown_table(details)]
    parts += [
        f"Failed: {cell['model']}, {ENGINES[cell['engine']]}, process {cell['repeat'] + 1}: {cell['error']}"
        for cell in content["cells"]
        if "error" in cell
    ]
    return "\n\n".join(parts) + "\n"


def editions_page(name: str, content: dict[str, Any]) -> str:
    """Whole calls of two editions on the same workload and machine."""
    rows = [("model", "first edition", "second edition", "ratio")]
    cells = content["cells"]
    calls = {(cell["model"], cell["edition"]): (cell["fresh"], statistics.median(cell["warm"])) for cell in cells}
    for model in dict.fromkeys(cell["model"] for cell in cells):
        before, after = calls[model, "first"], calls[model, "second"]
        ratios = " / ".join(f"{new / old:.2f}" for old, new in zip(before, after, strict=True))
        rows.append((model, *(" / ".join(f"{each:.2f}" for each in pair) for pair in (before, after)), ratios))
    commits = ", ".join(f"{edition} {commit}" for edition, commit in content["commits"].items())
    machine = content["environment"]
    parts = [
        *page_head("Whole calls of famr.forget, before and after the redesign", name),
        "- 500 images of one class of 100 forgotten by the default method in 10 epochs; 2,000 retained and 500 "
        "held-out images; made-up images in memory, random weights\n"
        f"- Commits: {commits}\n- Machine: {machine['hardware']}, torch {machine['torch']}",
        "## Seconds of a call: first of a process / median of four warm ones",
        markdown_table(rows),
    ]
    if "results" in content:
        parts += [
            "## Metrics of both editions from one original",
            "ViT-Ti/16 fine-tuned on CIFAR-100, one class forgotten; means over three classes and two seeds, and the "
            "largest difference between two seeds of one edition beside the largest between the editions.",
            markdown_table(_edition_results(content["results"])),
        ]
    return "\n\n".join(parts) + "\n"


def _edition_results(cells: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Means of both editions, and how far they are apart."""
    metrics = [name for name, value in cells[0].items() if isinstance(value, float)]
    values = {(c["edition"], c["method"], c["class"], c["seed"], name): c[name] for c in cells for name in metrics}
    classes, rows = sorted({cell["class"] for cell in cells}), []
    for method in sorted({cell["method"] for cell in cells}):
        for name in metrics:
            pair = [[[values[e, method, c, s, name] for s in (0, 1)] for c in classes] for e in ("first", "second")]
            means = [statistics.mean(value for seeds in edition for value in seeds) for edition in pair]
            seeds = max(abs(one - other) for edition in pair for one, other in edition)
            editions = max(
                abs(a - b) for ones, others in zip(*pair, strict=True) for a, b in zip(ones, others, strict=True)
            )
            rows.append((method, name.replace("_", " "), *(f"{value:.4f}" for value in (*means, seeds, editions))))
    head = (
        "method",
        "metric",
        "first edition",
        "second edition",
        "between seeds, at most",
        "between editions, at most",
    )
    return [head, *rows]


def _seconds(cells: Sequence[dict[str, Any]]) -> tuple[list[float], list[float]]:
    """Seconds of fresh and of warm calls."""
    return [cell["fresh"]["seconds"] for cell in cells], [call["seconds"] for cell in cells for call in cell["warm"]]


def _medians(cells: Sequence[dict[str, Any]]) -> str:
    return " / ".join(f"{statistics.median(values):.2f}" if values else "–" for values in _seconds(cells))


def _details(cells: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    calls = [call for cell in cells for call in cell["warm"] or [cell["fresh"]]]

    def median(name: str) -> float | None:
        values = [call[name] for call in calls if call[name] is not None]
        return statistics.median(values) if values else None

    ranges = [f"{min(values):.2f} to {max(values):.2f}" if values else "–" for values in _seconds(cells)]
    accuracy, memory = median("forget_accuracy"), [cell["peak_memory"] for cell in cells if cell["peak_memory"]]
    return (
        *ranges,
        f"{median('seconds_of_steps'):.2f}",
        ", ".join(map(str, sorted({call["trials"] for call in calls}))),
        "–" if accuracy is None else f"{100 * accuracy:.1f}",
        f"{median('drift'):.3f}",
        f"{statistics.median(memory) / 2**30:.2f}" if memory else "–",
    )


if __name__ == "__main__":
    measure_here() if sys.argv[1:] == ["--measure"] else main()
