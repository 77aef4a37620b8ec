"""SISA: accuracy by the number of shards, and what removing 1, 10 or 100 random images costs.

python -m benchmarks.sisa                                       digits with a small ViT, some minutes on a CPU
python -m benchmarks.sisa --data DIR --weights FILE             CIFAR-100 with ViT-Ti/16

One shard and one slice is the usual training of one model; a removal there is full retraining. Each removal starts
from the same trained models. `expected_share` is the mean share of image passes over many other draws of the same
number of images, which needs no training.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import famr
from benchmarks.cells import SMALL_VIT, Results, Start, log, open_parquet, small_vit, vit_tiny
from famr.data import Data
from famr.data.augmentation import Augmentation
from famr.engine.devices import pick_device
from famr.engine.inference import accuracy_on_images
from famr.sisa.ensemble import Sisa, train_sisa
from famr.sisa.plan import Stage

SHARDS = (1, 5, 10)
SLICES = (1, 4)
REMOVED = (1, 10, 100)
DRAWS = 200
DIGITS = famr.Training(epochs=20, batch_size=16, learning_rate=2e-3, augmentation=Augmentation(0.9, mirror=False))
CIFAR = famr.Training(epochs=3, batch_size=512, learning_rate=7e-4, weight_decay=0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the CIFAR-100 Parquet files; without it, the digits")
    parser.add_argument("--weights", type=Path, help="ImageNet weights of ViT-Ti/16, for CIFAR-100")
    parser.add_argument("--output", type=Path, help="the result file; cells in it are not run again")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--shards", type=int, nargs="+", default=list(SHARDS))
    parser.add_argument("--slices", type=int, nargs="+", default=list(SLICES))
    arguments = parser.parse_args()
    if (arguments.data is None) != (arguments.weights is None):
        parser.error("--data and --weights go together")
    if arguments.data is None:
        name, data, training = "sisa-digits", famr.open_data("digits"), DIGITS
        start = small_vit(data.labels)
        described = ("scikit-learn's digits, 80 % for training", f"timm:vit_tiny_patch16_224 {SMALL_VIT}, from scratch")
    else:
        name, data, training = "sisa-cifar100-vit_tiny", open_parquet(arguments.data), CIFAR
        start = vit_tiny(arguments.weights, data.labels)
        described = (
            "CIFAR-100, official split, resized to 224 px",
            "timm:vit_tiny_patch16_224, ImageNet weights, fine-tuned",
        )
    facts = {
        "benchmark": name,
        "data": described[0],
        "model": described[1],
        "training": asdict(training),
        "train_images": len(data.train),
        "draws": DRAWS,
    }
    results = Results(arguments.output or Path("build") / f"{name}.json", facts)
    for seed in arguments.seeds:
        for shards in arguments.shards:
            for slices in arguments.slices:
                if not results.has(shards=shards, slices=slices, seed=seed):
                    results.add(cell(start, data, training, shards, slices, seed))


def cell(start: Start, data: Data, training: famr.Training, shards: int, slices: int, seed: int) -> dict[str, Any]:
    """One training, and the three removals from it."""
    assert data.test is not None
    stages: list[Stage] = []
    started = time.perf_counter()
    sisa = train_sisa(
        start, data.train, shards=shards, slices=slices, training=training, seed=seed, on_stage=stages.append
    )
    seconds = time.perf_counter() - started
    device = pick_device("auto")
    trained = {
        "seconds": seconds,
        "passes": sum(stage.passes for stage in stages),
        "accuracy": {
            vote: accuracy_on_images(sisa.classifier(vote), data.test, device) for vote in ("majority", "mean")
        },
        "shard_accuracy": [accuracy_on_images(shard.model, data.test, device) for shard in sisa.shards],
    }
    log(f"{shards} shards, {slices} slices, seed {seed}: {trained['accuracy']}, {seconds:.1f} s")
    removals = [removal(sisa, data, count, seed, seconds) for count in REMOVED]
    return {"shards": shards, "slices": slices, "seed": seed, "trained": trained, "removals": removals}


def removal(sisa: Sisa, data: Data, count: int, seed: int, seconds: float) -> dict[str, Any]:
    """Forget `count` random images; `seconds` is what training everything took."""
    assert data.test is not None
    ids = random.Random(1000 * seed + count).sample(sisa.ids, count)
    unlearned, record = sisa.forget(data.train, ids)
    figures = {
        "removed": count,
        "shards": len({stage.shard for stage in record.stages}),
        "stages": len(record.stages),
        "passes": record.passes,
        "share": record.share,
        "speedup_passes": 1 / record.share,
        "expected_share": expected_share(sisa, count, seed),
        "seconds": record.seconds,
        "speedup_seconds": seconds / record.seconds,
        "accuracy": accuracy_on_images(unlearned.classifier(), data.test, pick_device("auto")),
    }
    log(f"  {count:3d} removed: share {figures['share']:.3f} of the passes, {record.seconds:.1f} s")
    return figures


def expected_share(sisa: Sisa, count: int, seed: int) -> float:
    """The mean share of image passes over random draws."""
    plan, epochs, batch_size = sisa.plan, sisa.training.epochs, sisa.training.batch_size
    costs: dict[tuple[int, int], int] = {}  # passes of retraining a shard from a slice on, removed images counted too
    for shard in range(plan.shards):
        for slice_ in range(plan.slices):
            costs[shard, slice_] = sum(s.passes for s in plan.stages(sisa.ids, {shard: slice_}, epochs, batch_size))
    whole = sum(costs[shard, 0] for shard in range(plan.shards))
    draw = random.Random(seed)
    touched = (plan.first_touched(draw.sample(sisa.ids, count)) for _ in range(DRAWS))
    return statistics.fmean(sum(costs[pair] for pair in first.items()) / whole for first in touched)


if __name__ == "__main__":
    main()
