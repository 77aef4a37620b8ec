"""From the shell to a finished run folder: what `famr forget` takes, part by part, beside a retraining from the shell.

    python -m benchmarks.end_to_end --data parquet:DIR --model timm:vit_tiny_patch16_224 --weights FILE --class man \
        --epochs 8 --batch-size 512 --learning-rate 7e-4 --output benchmarks/results/end_to_end-cifar100-vit_tiny.json

Before that, on the same model and data, the paper's steps by a plain loop and by ours, and what each made of it.

Every command is a process of its own, timed from outside. One more run of each is taken apart, see `taken_apart`; it
takes a little longer. `--original RUN` leaves out the first training.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import famr
from benchmarks.cells import Results, log
from famr.bench.speed_loops import compare_loops, numbers
from famr.engine.devices import pick_device
from famr.evaluation.evaluate import compare

SKETCH = "{sketch}"
HELD = ["--sketch", SKETCH, "--function-strength", "0"]
METHODS: dict[str, list[str]] = {
    "default": [],
    "default, held by a sketch": HELD,
    "10 epochs, held by a sketch": [*HELD, "--epochs", "10"],
}
"""By name, what is asked of `famr forget`. With a sketch no retained image takes part in the steps; see its seconds."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--label-column")
    parser.add_argument("--model", required=True)
    parser.add_argument("--model-arg", action="append", default=[])
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--class", dest="name", required=True)
    parser.add_argument("--original", type=Path, help="a run folder trained like that")
    parser.add_argument("--epochs", default="8")
    parser.add_argument("--batch-size", default="512")
    parser.add_argument("--learning-rate", default="7e-4")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    facts = {
        "benchmark": "end_to_end",
        "data": given.data.partition(":")[0] + (f", class {given.name}"),
        "model": given.model,
        "training": {
            "epochs": int(given.epochs),
            "batch_size": int(given.batch_size),
            "learning_rate": float(given.learning_rate),
        },
        "repeats": given.repeats,
    }
    results = Results(given.output, facts)
    data = ["--data", given.data, *(["--label-column", given.label_column] if given.label_column else [])]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        train = ["train", *data, "--model", given.model, "--epochs", given.epochs, "--batch-size", given.batch_size]
        train += ["--learning-rate", given.learning_rate, *(f"--model-arg={each}" for each in given.model_arg)]
        train += ["--weights", str(given.weights)] if given.weights else ["--from-scratch"]
        original = given.original or folder / "original"
        if given.original is None:
            timed([*train, "--output-dir", str(original)])
        if not results.has(name="loops"):
            results.add({"name": "loops", **loops(original, given.data, given.label_column, given.name)})
        retrained = folder / "retrained"
        if not results.has(name="retraining"):
            seconds = timed([*train, "--without-class", given.name, "--output-dir", str(retrained)])
            told = json.loads((retrained / "training/run.json").read_text(encoding="utf-8"))
            cell = {"name": "retraining", "seconds": [seconds], "seconds_of_steps": told["seconds"]}
            results.add({**cell, "scores": measured(retrained, given.data, given.label_column, given.name)})
        sketch, taking = folder / "sketch.safetensors", 0.0
        for name, more in METHODS.items():
            if results.has(name=name):
                continue
            before = {}
            if SKETCH in more:
                if not sketch.exists():
                    taking = timed(["sketch", str(original), *data, "--output", str(sketch)])
                before = {"seconds_of_sketch": taking}
                more = [str(sketch) if each == SKETCH else each for each in more]
            asked = ["forget", *data, "--model", str(original), "--class", given.name, "--json", *more]
            outs = [folder / f"{len(results.content['cells'])}-{turn}" for turn in range(given.repeats)]
            calls = [timed([*asked, "--output-dir", str(out)]) for out in outs]
            runs = [json.loads((out / "unlearning/run.json").read_text(encoding="utf-8")) for out in outs]
            scores = json.loads((outs[-1] / "unlearning/metrics.json").read_text(encoding="utf-8"))
            parts = taken_apart([*asked, "--output-dir", str(folder / f"profiled-{len(calls)}-{name}")], folder)
            took = {
                f"seconds_of_{part}": statistics.median(run[key] for run in runs)
                for part, key in (("steps", "seconds"), ("all", "seconds_of_all"))
            }
            every = {"every_seconds_of_steps": [run["seconds"] for run in runs]}
            cell = {"name": name, "seconds": calls, **took, **every, **before, "parts": parts}
            results.add({**cell, "scores": {model: scores[model] for model in ("original", "unlearned")}})
            log(f"{name}: {cell}")


def measured(retrained: Path, spec: str, label_column: str | None, name: str) -> dict[str, Any]:
    """What became of a retraining, as `famr forget` says it of its own model."""
    model, splits = famr.load_model(str(retrained)), without_class(spec, label_column, name)
    found: dict[str, Any] = compare(None, model, None, splits).to_json()["unlearned"]
    return found


def without_class(spec: str, label_column: str | None, name: str) -> famr.Splits:
    """The data, parted by the class to forget."""
    return famr.split(famr.open_data(spec, label_column=label_column), famr.Request(classes=[name]))


def loops(original: Path, spec: str, label_column: str | None, name: str) -> dict[str, Any]:
    """The paper's preset in the precision of the device, as a plain loop takes its steps and as ours does."""
    place = pick_device("auto")
    splits = without_class(spec, label_column, name)
    paper = famr.FAMR.paper()
    method = numbers(paper.settled_epochs, paper.batch_size, "bf16" if place.type == "cuda" else "fp32")
    found = compare_loops(famr.load_model(str(original)), splits, method, seed=0, device=place, repeats=2)
    log(f"loops: {found}")
    return found


def timed(command: list[str]) -> float:
    """Seconds of a famr command in a process of its own."""
    begin = time.perf_counter()
    _run([sys.executable, "-m", "famr", *command, *([] if command[0] == "sketch" else ["--quiet"])])
    seconds = time.perf_counter() - begin
    log(f"{seconds:6.2f} s: famr {' '.join(command)}")
    return seconds


def taken_apart(command: list[str], folder: Path) -> dict[str, float]:
    """Seconds of each part of a command, and of all of it."""
    file = folder / "parts.json"
    begun = time.time()
    _run([sys.executable, "-m", "benchmarks.taken_apart", str(begun), str(file), *command, "--quiet"])
    whole = time.time() - begun
    found: dict[str, float] = json.loads(file.read_text(encoding="utf-8"))
    return {**found, "all of it": whole}


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\nexit code {done.returncode}\n{done.stderr[-2000:]}")
    if "--json" in command:
        json.loads(done.stdout)


if __name__ == "__main__":
    main()
