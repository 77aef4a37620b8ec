"""Two editions of famr, the one on PYTHONPATH each time: seconds of whole calls of `famr.forget`, and its results.

    PYTHONPATH=first/src  python -m benchmarks.editions first tiny --output benchmarks/results/editions-h200.json
    PYTHONPATH=second/src python -m benchmarks.editions second tiny --output benchmarks/results/editions-h200.json
    … first cifar100 --data DIR --model RUN --output …     results on three classes of CIFAR-100, from one original

A class of 500 images is forgotten by the default method in 10 epochs, from a ViT with random weights, beside 2,000
retained and 500 held-out images of 99 classes, made up and in memory. The first call of the process stands apart, four
warm ones follow. It imports nothing but famr, so that it runs beside any edition.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import famr

FORGET, RETAINED, HELD_OUT, SIDE = 500, 2000, 500, 224
CLASSES = ("apple", "house", "streetcar")
LABELS = tuple(f"class {index}" for index in range(100))


def first_of(*names: str) -> Any:
    """The first of several dotted names that exists, as module paths differ between editions."""
    for name in names:
        module, _, attribute = name.rpartition(".")
        try:
            return getattr(import_module(module), attribute)
        except (ImportError, AttributeError):
            continue
    raise ImportError(f"None of {', '.join(names)}.")


def images(name: str, classes: list[int]) -> Any:
    """Noise, 256 images of it again and again."""
    pool = np.random.default_rng(0).integers(0, 255, (256, SIDE, SIDE, 3), dtype=np.uint8)
    ids = [f"{name}/{row}" for row in range(len(classes))]
    source = first_of("famr.data.Images", "famr.images.Images").from_source
    return source(lambda row: Image.fromarray(pool[row % 256]), ids, torch.tensor(classes))


def measure(size: str) -> dict[str, Any]:
    """The first call of this process, and four more."""
    model: Any = famr.new_model(f"timm:vit_{size}_patch16_224", LABELS, from_scratch=True, seed=0)
    model = replace(model, preprocessing=replace(model.preprocessing, resize=model.preprocessing.crop))
    remaining = [1 + row % 99 for row in range(RETAINED)]
    data = first_of("famr.data.Data", "famr.dataset.Data")(
        "synthetic", LABELS, images("train", [0] * FORGET + remaining), images("test", remaining[:HELD_OUT]), False
    )
    splits = famr.split(data, famr.Request(classes=[LABELS[0]]))
    method = quick(epochs=10, strength=1.0)
    untracked: Any = {"track_retain": False}
    if hasattr(famr, "Monitor"):
        untracked = {"monitor": famr.Monitor(track_retain=False)}
    seconds, steps = [], []
    for _ in range(5):
        start = time.perf_counter()
        result = famr.forget(model, splits, method, seed=0, **untracked)
        seconds.append(time.perf_counter() - start)
        steps.append(result.seconds)
    return {"model": f"vit_{size}", "fresh": seconds[0], "warm": seconds[1:], "steps": steps}


def quick(**settings: Any) -> famr.FAMR:
    """The method that both editions have: the default of the first, and the quick effort of the second."""
    if "effort" in {each.name for each in fields(famr.FAMR)}:
        settings["effort"] = "quick"
    return famr.FAMR(**settings)


def results(data: Path, run: Path) -> list[dict[str, Any]]:
    """The metrics after one class is forgotten, for three classes, two methods and two seeds."""
    model, images = famr.load_model(str(run)), famr.open_data(f"parquet:{data}", label_column="label")
    cells = []
    for name in CLASSES:
        splits = famr.split(images, famr.Request(classes=[name]))
        for method, settings in (("default", quick()), ("paper", famr.FAMR.paper())):
            for seed in (0, 1):
                result = famr.forget(model, splits, settings, seed=seed)
                scores = asdict(famr.evaluate(result, splits).unlearned)
                values = {name: value for name, value in scores.items() if isinstance(value, float)}
                cells.append({"class": name, "method": method, "seed": seed, **values})
                print(cells[-1], flush=True)
    return cells


def main() -> None:
    """One process measures one model, so that its first call is fresh."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("edition", choices=["first", "second"])
    parser.add_argument("size", choices=["tiny", "base", "large", "cifar100"])
    parser.add_argument("--data", type=Path, help="CIFAR-100 as Parquet files")
    parser.add_argument("--model", type=Path, help="run folder of a model trained on it")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    content: dict[str, Any] = {"benchmark": "editions", "command": "python -m benchmarks.editions", "cells": []}
    if arguments.output.is_file():
        content = json.loads(arguments.output.read_text(encoding="utf-8"))
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    content["environment"] = {"hardware": device, "torch": torch.__version__}
    if arguments.size == "cifar100":
        rows = [{"edition": arguments.edition, **cell} for cell in results(arguments.data, arguments.model)]
        content["results"] = content.get("results", []) + rows
    else:
        content["cells"].append({"edition": arguments.edition, **measure(arguments.size)})
    arguments.output.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
