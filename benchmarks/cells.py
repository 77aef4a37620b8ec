"""What the benchmarks share: arguments, data and networks, originals, one cell, the file that keeps the results."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping
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

CLASS_SEED = 2025
SAMPLE_SHARE = 10
"""One training image in so many is a sample that is forgotten."""
CALIBRATION_STRIDE = 5
"""Every fifth test image is for the methods, for a temperature; the other ones are scored."""
CIFAR100_TRAINING = famr.Training(epochs=8, batch_size=512, learning_rate=7e-4, weight_decay=0.05)

SMALL_VIT = {"img_size": 16, "patch_size": 4, "embed_dim": 64, "depth": 2, "num_heads": 2}

Start = Callable[[int], famr.Classifier]
"""From a seed, the model that training starts from."""


# Arguments, data, networks


def parser_for(
    description: str | None, data: str | None = None, weights_required: bool = True
) -> argparse.ArgumentParser:
    """Arguments that the benchmarks share: where data, weights and trained models are, where results go."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="the result file")
    if data is not None:
        parser.add_argument("--data", type=Path, required=True, help=f"folder of the {data} Parquet files")
        parser.add_argument("--weights", type=Path, required=weights_required, help="ImageNet weights of ViT-Ti/16")
        parser.add_argument("--models", type=Path, help="where originals and retrained references are kept")
    return parser


def open_parquet(folder: Path) -> Data:
    """The images of a folder of Parquet files with a column `label`."""
    return famr.open_data(f"parquet:{folder}", label_column="label")


def cifar100_facts(benchmark: str, *, calibrated: bool = False, **more: Any) -> dict[str, Any]:
    """What a result file of CIFAR-100 with ViT-Ti records of its setting."""
    scored = "; 4 of 5 test images scored, the others shown" if calibrated else ""
    return {
        "benchmark": benchmark,
        "data": f"CIFAR-100, official split, resized to 224 px{scored}",
        "model": "timm:vit_tiny_patch16_224, ImageNet weights, fine-tuned",
        "training": asdict(CIFAR100_TRAINING),
        **more,
    }


def vit_tiny(weights: Path, labels: tuple[str, ...]) -> Start:
    """ViT-Ti/16 at 224 px with the given ImageNet weights and a new head drawn with the seed."""
    return lambda seed: famr.new_model("timm:vit_tiny_patch16_224", labels, weights=weights, seed=seed)


def small_vit(labels: tuple[str, ...], **changes: int) -> Start:
    """A ViT of two blocks with random weights, for small images; `changes` replace arguments of `SMALL_VIT`."""
    arguments = {**SMALL_VIT, **changes}
    return lambda seed: famr.new_model(
        "timm:vit_tiny_patch16_224", labels, from_scratch=True, arguments=arguments, seed=seed
    )


def calibration_images(images: Images | None) -> Images:
    """Test images that methods may see; they are not scored."""
    assert images is not None
    return images.take(torch.arange(0, len(images), CALIBRATION_STRIDE))


def drawn_samples(data: Data) -> torch.Tensor:
    """A tenth of the training images, drawn with a fixed seed."""
    draws = torch.Generator().manual_seed(CLASS_SEED)
    return torch.randperm(len(data.train), generator=draws)[: len(data.train) // SAMPLE_SHARE].sort().values


# Results


def log(text: str) -> None:
    """A line with the time, at once."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


def write_results(file: Path, content: Mapping[str, Any]) -> None:
    """Write a result file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")


class Results:
    """A result file that grows cell by cell; a cell that is in it already is not run again."""

    def __init__(self, file: Path, facts: dict[str, Any]) -> None:
        self.file = file
        device = str(pick_device("auto"))
        self.content: dict[str, Any] = {**facts, "environment": environment(device), "originals": {}, "cells": []}
        if file.is_file():
            self.content = json.loads(file.read_text(encoding="utf-8"))

    def has(self, **key: Any) -> bool:
        """Whether a cell with these values is there."""
        return any(all(cell.get(name) == value for name, value in key.items()) for cell in self.content["cells"])

    def add(self, cell: dict[str, Any]) -> None:
        """Add a cell, and write the file."""
        self.content["cells"].append(cell)
        self.save()

    def save(self) -> None:
        """Write the file."""
        write_results(self.file, self.content)


# Originals and cells


def train_original(
    start: Start, data: Data, training: famr.Training, seed: int, results: Results, models: Path | None
) -> famr.Classifier:
    """The model that is to forget; its test accuracy goes into the results. Kept in `models`, if given."""
    folder = None if models is None else models / f"original-{seed}"
    if folder is not None and folder.is_dir():
        record = json.loads((folder / "original.json").read_text(encoding="utf-8"))
        model = famr.load_model(str(folder / "run"))
    else:
        assert data.test is not None
        trained = famr.fit(start(seed), data.train, training, seed=seed)
        model = trained.model
        record = {
            "test_accuracy": accuracy_on_images(model, data.test, pick_device("auto")),
            "seconds": trained.seconds,
            "history": [asdict(row) for row in trained.history],
        }
        if folder is not None:
            trained.save(folder / "run")
            (folder / "original.json").write_text(json.dumps(record), encoding="utf-8")
    results.content["originals"][str(seed)] = record
    results.save()
    log(f"original, seed {seed}: test accuracy {record['test_accuracy']}, {record['seconds']:.1f} s of training")
    return model


class Case:
    """A request with its original and its retrained model; the predictions of both are computed once for all methods.

    `splits` is what is scored, `method_splits` what a method may see.
    """

    def __init__(self, original: famr.Classifier, retrained: Reference, splits: famr.Splits) -> None:
        self.device = pick_device("auto")
        self.original, self.retrained, self.splits, self.method_splits = original, retrained, splits, splits
        self.original_predictions = predict_splits(splits, original, self.device)

    @classmethod
    def with_calibration(
        cls, original: famr.Classifier, retrained: Reference, splits: famr.Splits, calibration: Images
    ) -> Case:
        """The methods may see these test images; the other ones are scored."""
        assert splits.test is not None
        ids = set(calibration.ids)
        visible = torch.tensor([id_ in ids for id_ in splits.test.ids])
        case = cls(original, retrained.where(~visible), replace(splits, test=splits.test.where(~visible)))
        case.method_splits = replace(splits, test=splits.test.where(visible))
        return case

    def forget(
        self, name: str, method: famr.FAMR, seed: int, track: bool = True, sketch: famr.Sketch | None = None
    ) -> dict[str, Any]:
        """Forget with a method and compare: the cell as plain values. With a sketch, only the forget set is read."""
        splits = self.method_splits if sketch is None else famr.forget_only(self.method_splits.forget)
        start = time.perf_counter()
        monitor = famr.Monitor(track_retain=track)
        result = famr.forget(self.original, splits, method, sketch=sketch, seed=seed, monitor=monitor)
        seconds = time.perf_counter() - start
        predictions = predict_splits(self.splits, result.model, self.device)
        scores = compare_predictions(self.original_predictions, predictions, self.retrained.predictions, self.splits)
        unlearned, retrained = scores.unlearned, scores.retrained
        assert retrained is not None
        assert scores.gap is not None
        accuracies = (unlearned.retain_accuracy, retrained.retain_accuracy, unlearned.forget_accuracy)
        percent = [100 * (value or 0) for value in accuracies]
        log(
            f"{name:24s} {self.splits.request.describe()}, seed {seed}: Ret {percent[0]:.2f} of {percent[1]:.2f}, "
            f"For {percent[2]:.2f}, held-out {unlearned.forget_test_accuracy}, Ent {unlearned.forget_entropy:.2f}, "
            f"JS {scores.gap['forget_js_divergence']:.3f}, {result.seconds:.2f} of {self.retrained.seconds:.1f} s"
        )
        rows = result.history if track else result.history[:: len(result.history) - 1]
        return {
            "name": name,
            "request": self.splits.request.to_json(),
            "seed": seed,
            **scores.to_json(),
            "seconds": {"unlearned": result.seconds, "with_preparation": seconds, "retrained": self.retrained.seconds},
            "why": result.why,
            "trials": len(result.trials),
            "method": result.method.to_json(),
            "drift": result.drift,
            "drift_bound": result.drift_bound,
            "history": [asdict(row) for row in rows],
        }

    def forget_or_error(
        self, name: str, method: famr.FAMR, seed: int, sketch: famr.Sketch | None = None
    ) -> dict[str, Any]:
        """The cell, or the reason why there is none."""
        try:
            return self.forget(name, method, seed, track=False, sketch=sketch)
        except famr.FamrError as error:
            log(f"{name}: {error}")
            return {"name": name, "request": self.splits.request.to_json(), "seed": seed, "error": error.what}
