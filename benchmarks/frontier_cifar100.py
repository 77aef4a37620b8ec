"""Targets and anchors beside the paper's algorithm: CIFAR-100, ViT-Ti, several classes and seeds, one retraining each.

    python -m benchmarks.frontier_cifar100 --data DIR --weights FILE \
        --output benchmarks/results/frontier-cifar100-vit_tiny.json

Every method of `METHODS` forgets the same class from the same original and is held against the same retrained model.
"""

from __future__ import annotations

from dataclasses import asdict

import famr
from benchmarks.cells import Case, Results, drawn_classes, log, train_original, usual_arguments, vit_tiny
from benchmarks.paper_cifar100 import CLASS_SEED, TRAINING
from benchmarks.references import reference

ADAM = famr.FAMR(optimiser="adam", reduction="mean", learning_rate=3e-5, epochs=10)


def methods() -> dict[str, famr.FAMR]:
    """What is compared, by name."""
    settings = asdict(ADAM)
    changed: dict[str, dict[str, object]] = {
        "masked, l2 0.1": {"target": "masked"},
        "masked, l2 10": {"target": "masked", "strength": 10.0, "epochs": 20},
        "masked, fisher 1e5": {"target": "masked", "anchor": "fisher", "strength": 1e5, "epochs": 20},
        "masked, function 1": {"target": "masked", "function_strength": 1.0, "epochs": 20},
        "uniform, function 1": {"function_strength": 1.0, "epochs": 20},
    }
    return {"paper": famr.FAMR.paper()} | {
        name: famr.FAMR.from_json({**settings, **change}) for name, change in changed.items()
    }


def main() -> None:
    parser = usual_arguments(__doc__, "CIFAR-100")
    parser.add_argument("--classes", type=int, default=5)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    arguments = parser.parse_args()
    data = famr.open_data(f"parquet:{arguments.data}")
    start = vit_tiny(arguments.weights, data.labels)
    facts = {
        "benchmark": "frontier-cifar100-vit_tiny",
        "data": "CIFAR-100, official split, resized to 224 px",
        "model": "timm:vit_tiny_patch16_224, ImageNet weights, fine-tuned",
        "training": asdict(TRAINING),
        "method": ADAM.to_json(),
        "class_seed": CLASS_SEED,
    }
    results = Results(arguments.output, facts)
    for seed in arguments.seeds:
        original = train_original(start, data, TRAINING, seed, results, arguments.models)
        for name in drawn_classes(data.labels, arguments.classes, CLASS_SEED):
            request = famr.Request(classes=[name])
            missing = {
                label: method
                for label, method in methods().items()
                if not results.has(name=label, request=request.to_json(), seed=seed)
            }
            if not missing:
                continue
            splits = famr.split(data, request)
            case = Case(original, reference(start, splits, TRAINING, seed, arguments.models), splits)
            for label, method in missing.items():
                try:
                    results.add(case.forget(label, method, seed, track=False))
                except famr.FamrError as error:
                    log(f"{label}: {error}")
                    results.add({"name": label, "request": request.to_json(), "seed": seed, "error": error.what})


if __name__ == "__main__":
    main()
