"""A concept: one superclass of CIFAR-100 (five classes) forgotten by FAMR.paper(), with its retraining.

python -m benchmarks.concept_cifar100 --data DIR --weights FILE \
        --output benchmarks/results/concept-cifar100-vit_tiny.json
"""

from __future__ import annotations

import famr
from benchmarks.cells import (
    CIFAR100_TRAINING,
    Case,
    Results,
    cifar100_facts,
    open_parquet,
    parser_for,
    train_original,
    vit_tiny,
)
from benchmarks.references import reference


def main() -> None:
    parser = parser_for(__doc__, "CIFAR-100")
    parser.add_argument("--superclass", default="fish")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    data, seed = open_parquet(arguments.data), arguments.seed
    start = vit_tiny(arguments.weights, data.labels)
    method = famr.FAMR.paper()
    results = Results(arguments.output, cifar100_facts("concept-cifar100-vit_tiny", method=method.to_json()))
    original = train_original(start, data, CIFAR100_TRAINING, seed, results, arguments.models)
    splits = famr.split(data, famr.Request(concept=("superclass", arguments.superclass)))
    case = Case(original, reference(start, splits, CIFAR100_TRAINING, seed, arguments.models), splits)
    results.add(case.forget("paper", method, seed))


if __name__ == "__main__":
    main()
