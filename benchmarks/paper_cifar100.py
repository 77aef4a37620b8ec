"""The paper's Table 1, row ViT-Ti: FAMR.paper() on CIFAR-100, several classes and seeds, each with its retraining.

python -m benchmarks.paper_cifar100 --data DIR --weights FILE --output benchmarks/results/paper-cifar100-vit_tiny.json
"""

from __future__ import annotations

import famr
from benchmarks.cells import (
    CIFAR100_TRAINING,
    CLASS_SEED,
    Case,
    Results,
    cifar100_facts,
    log,
    open_parquet,
    parser_for,
    train_original,
    vit_tiny,
)
from benchmarks.references import reference
from famr.bench.tasks import drawn_classes


def main() -> None:
    parser = parser_for(__doc__, "CIFAR-100")
    parser.add_argument("--classes", type=int, default=5)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    arguments = parser.parse_args()
    data = open_parquet(arguments.data)
    start = vit_tiny(arguments.weights, data.labels)
    method = famr.FAMR.paper()
    facts = cifar100_facts("paper-cifar100-vit_tiny", method=method.to_json(), class_seed=CLASS_SEED)
    results = Results(arguments.output, facts)
    classes = drawn_classes(data.labels, arguments.classes, CLASS_SEED)
    log(f"classes {classes}, seeds {arguments.seeds}")
    for seed in arguments.seeds:
        requests = [famr.Request(classes=[name]) for name in classes]
        missing = [r for r in requests if not results.has(request=r.to_json(), seed=seed)]
        if not missing:
            continue
        original = train_original(start, data, CIFAR100_TRAINING, seed, results, arguments.models)
        for request in missing:
            splits = famr.split(data, request)
            case = Case(original, reference(start, splits, CIFAR100_TRAINING, seed, arguments.models), splits)
            results.add(case.forget("paper", method, seed, track=seed == arguments.seeds[0]))


if __name__ == "__main__":
    main()
