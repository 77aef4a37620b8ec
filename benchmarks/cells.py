"""One cell of a benchmark: a request forgotten by a method, beside its original and its retrained reference."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

import famr
from benchmarks.references import Reference
from famr.data import Images
from famr.data.dataset import Data
from famr.engine.devices import pick_device
from famr.engine.inference import accuracy_on_images, predict_splits
from famr.evaluation.evaluate import compare_predictions
from famr.runs.folder import environment


def log(text: str) -> None:
    """A line with the time, at once."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


class Results:
    """A result file that grows cell by cell; a cell that is in it already is not run again."""

    def __init__(self, file: Path, facts: dict[str, Any]) -> None:
        self.file = file
        place = str(pick_device("auto"))
        self.content: dict[str, Any] = {**facts, "environment": environment(place), "originals": {}, "cells": []}
        if file.is_file():
            self.content = json.loads(file.read_text(encoding="utf-8"))

    def has(self, **key: Any) -> bool:
        """Whether a cell with these values is there."""
        return any(all(cell.get(name) == value for name, value in key.items()) for cell in self.content["cells"])

    def add(self, cell: dict[str, Any]) -> None:
        """Keep a cell, on disk at once."""
        self.content["cells"].append(cell)
        self.save()

    def save(self) -> None:
        """Write the file anew."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(json.dumps(self.content, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def train_original(
    start: Callable[[int], famr.Classifier],
    data: Data,
    training: famr.Training,
    seed: int,
    results: Results,
    models: Path | None,
) -> famr.Classifier:
    """The model that is later to forget; its test accuracy goes into the results. Kept in `models`, if given."""
    kept = None if models is None else models / f"original-{seed}"
    if kept is not None and kept.is_dir():
        record = json.loads((kept / "original.json").read_text(encoding="utf-8"))
        model = famr.load_model(str(kept / "run"))
    else:
        assert data.test is not None
        trained = famr.fit(start(seed), data.train, training, seed=seed)
        model = trained.model
        record = {
            "test_accuracy": accuracy_on_images(model, data.test, pick_device("auto")),
            "seconds": trained.seconds,
            "history": [asdict(row) for row in trained.history],
        }
        if kept is not None:
            trained.save(kept / "run")
            (kept / "original.json").write_text(json.dumps(record), encoding="utf-8")
    results.content["originals"][str(seed)] = record
    results.save()
    log(f"original, seed {seed}: test accuracy {record['test_accuracy']}, {record['seconds']:.1f} s of training")
    return model


class Case:
    """A request with its original and its retrained model, whose answers are taken once for every method."""

    def __init__(self, original: famr.Classifier, retrained: Reference, splits: famr.Splits) -> None:
        self.device = pick_device("auto")
        self.original, self.retrained, self.seen = original, retrained, splits
        self.splits = splits  # what is scored; `seen` is what a method may look at
        self.said = predict_splits(self.splits, original, self.device)

    @classmethod
    def with_test_apart(
        cls, original: famr.Classifier, retrained: Reference, splits: famr.Splits, apart: Images
    ) -> Case:
        """The test images in `apart` are shown to the methods, for a temperature; the others are scored."""
        assert splits.test is not None
        ids = set(apart.ids)
        shown = torch.tensor([id_ in ids for id_ in splits.test.ids])
        case = cls(original, retrained.where(~shown), replace(splits, test=splits.test.where(~shown)))
        case.seen = replace(splits, test=splits.test.where(shown))
        return case

    def forget(
        self,
        name: str,
        method: famr.FAMR,
        seed: int,
        track: bool = True,
        sketch: famr.Sketch | None = None,
    ) -> dict[str, Any]:
        """Forget with a method and compare: the cell as plain values. With a sketch the method sees nothing else."""
        seen = self.seen if sketch is None else famr.forget_only(self.seen.forget)
        start = time.perf_counter()
        monitor = famr.Monitor(track_retain=track)
        result = famr.forget(self.original, seen, method, sketch=sketch, seed=seed, monitor=monitor)
        whole = time.perf_counter() - start
        unlearned = predict_splits(self.splits, result.model, self.device)
        scores = compare_predictions(self.said, unlearned, self.retrained.answers, self.splits)
        kept, found = scores.unlearned, scores.retrained
        assert found is not None
        assert scores.gap is not None
        percent = [100 * (value or 0) for value in (kept.retain_accuracy, found.retain_accuracy, kept.forget_accuracy)]
        log(
            f"{name:24s} {self.splits.request.describe()}, seed {seed}: Ret {percent[0]:.2f} of {percent[1]:.2f}, "
            f"For {percent[2]:.2f}, held-out {kept.forget_test_accuracy}, Ent {kept.forget_entropy:.2f}, "
            f"JS {scores.gap['forget_js_divergence']:.3f}, {result.seconds:.2f} of {self.retrained.seconds:.1f} s"
        )
        return {
            "name": name,
            "request": self.splits.request.to_json(),
            "seed": seed,
            **scores.to_json(),
            "seconds": {"unlearned": result.seconds, "with_preparation": whole, "retrained": self.retrained.seconds},
            "why": result.why,
            "trials": len(result.trials),
            "method": result.method.to_json(),
            "drift": result.drift,
            "drift_bound": result.drift_bound,
            "history": [
                asdict(row) for row in (result.history if track else result.history[:: len(result.history) - 1])
            ],
        }


def usual_arguments(description: str | None, data: str, weights_required: bool = True) -> argparse.ArgumentParser:
    """What every benchmark is told: where data and weights lie, and where its results go."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help=f"folder of the {data} Parquet files")
    parser.add_argument("--weights", type=Path, required=weights_required, help="ImageNet weights of ViT-Ti/16")
    parser.add_argument("--output", type=Path, required=True, help="the result file; cells in it are not run again")
    parser.add_argument("--models", type=Path, help="where originals and retrained references are kept for later runs")
    return parser


def vit_tiny(weights: Path, labels: tuple[str, ...]) -> Callable[[int], famr.Classifier]:
    """ViT-Ti/16 at 224 px with the given ImageNet weights and a new head drawn with the seed."""
    return lambda seed: famr.new_model("timm:vit_tiny_patch16_224", labels, weights=weights, seed=seed)


def one_in_five(images: Images | None) -> Images:
    """Some test images that methods may look at; they are not scored."""
    assert images is not None
    return images.take(torch.arange(0, len(images), 5))


def drawn_classes(labels: tuple[str, ...], count: int, seed: int) -> list[str]:
    """Some classes, by a fixed seed and not by their results."""
    picked = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))[:count]
    return [labels[index] for index in picked.tolist()]
