"""A concept: one superclass of CIFAR-100 (five classes) forgotten by FAMR.paper(), with its retraining.

python -m benchmarks.concept_cifar100 --data DIR --weights FILE \
        --output benchmarks/results/concept-cifar100-vit_tiny.json
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

import famr
from benchmarks.cells import Case, Results, retrain, train_original, vit_tiny
from benchmarks.paper_cifar100 import TRAINING


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the CIFAR-100 Parquet files")
    parser.add_argument("--weights", type=Path, required=True, help="ImageNet weights of ViT-Ti/16")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--models", type=Path, help="where benchmarks.paper_cifar100 kept its originals")
    parser.add_argument("--superclass", default="fish")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    data = famr.open_data(f"parquet:{arguments.data}", label_column="label")
    start = vit_tiny(arguments.weights, data.labels)
    method = famr.FAMR.paper()
    facts = {
        "benchmark": "concept-cifar100-vit_tiny",
        "data": "CIFAR-100, official split, resized to 224 px",
        "model": "timm:vit_tiny_patch16_224, ImageNet weights, fine-tuned",
        "training": asdict(TRAINING),
        "method": method.to_json(),
    }
    results = Results(arguments.output, facts)
    original = train_original(start, data, TRAINING, arguments.seed, results, arguments.models)
    splits = famr.split(data, famr.Request(concept=("superclass", arguments.superclass)))
    case = Case(original, retrain(start, splits, TRAINING, arguments.seed), splits)
    results.add(case.forget("paper", method, arguments.seed))


if __name__ == "__main__":
    main()
