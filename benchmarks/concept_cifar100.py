"""A concept: one superclass of CIFAR-100 (five classes) forgotten by FAMR.paper(), with its retraining.

python -m benchmarks.concept_cifar100 --data DIR --weights FILE \
        --output benchmarks/results/concept-cifar100-vit_tiny.json
"""

from __future__ import annotations

from dataclasses import asdict

import famr
from benchmarks.cells import Case, Results, train_original, usual_arguments, vit_tiny
from benchmarks.paper_cifar100 import TRAINING
from benchmarks.references import reference


def main() -> None:
    parser = usual_arguments(__doc__, "CIFAR-100")
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
    case = Case(original, reference(start, splits, TRAINING, arguments.seed, arguments.models), splits)
    results.add(case.forget("paper", method, arguments.seed))


if __name__ == "__main__":
    main()
