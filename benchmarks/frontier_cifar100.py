"""Targets and anchors beside the paper's algorithm: CIFAR-100, ViT-Ti, several classes and seeds, one retraining each.

    python -m benchmarks.frontier_cifar100 --data DIR --weights FILE \
        --output benchmarks/results/frontier-cifar100-vit_tiny.json

Every method of `METHODS` forgets the same class from the same original and is compared with the same retrained model;
`CURVES`, which vary the strength of one anchor each, do so for the first seed. Methods may see one test image in five
(for the temperature); the other ones are scored. `--tuning` takes other classes than those that are reported: settings
are chosen there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import famr
from benchmarks.cells import (
    CIFAR100_TRAINING,
    CLASS_SEED,
    Case,
    Results,
    calibration_images,
    cifar100_facts,
    open_parquet,
    parser_for,
    train_original,
    vit_tiny,
)
from benchmarks.references import js_between, reference
from famr.bench.tasks import drawn_classes

TUNING_SEED = 7
DEFAULT = famr.FAMR(effort="quick")


class Row(NamedTuple):
    """A method, and whether it reads nothing but the forget images and a sketch."""

    method: famr.FAMR
    from_sketch: bool = False


METHODS = {
    "paper": Row(famr.FAMR.paper()),
    "uniform, 20 images a class": Row(replace(DEFAULT, target="uniform", epochs=24)),
    "uniform, free head, 20 images a class": Row(replace(DEFAULT, target="uniform", epochs=24, edit_head=True)),
    "default, sketch only": Row(DEFAULT, from_sketch=True),
    "default, 20 images a class": Row(DEFAULT),
    "late layers alone": Row(replace(DEFAULT, anchor="l2", function_strength=0.0)),
    "late layers, kfac": Row(replace(DEFAULT, function_strength=0.0)),
    "late layers, function, kfac": Row(replace(DEFAULT, anchor="kfac")),
    "all layers, kfac": Row(replace(DEFAULT, function_strength=0.0, edited_share=1.0)),
    "all layers and head, kfac": Row(replace(DEFAULT, function_strength=0.0, edited_share=1.0, edit_head=True)),
    "all layers, plain": Row(replace(DEFAULT, anchor="l2", function_strength=0.0, edited_share=1.0)),
}
PENALISED = replace(  # Eq. (1) with a better target and Adam: the anchor is a penalty on every weight
    famr.FAMR.paper(),
    target="masked",
    optimiser="adam",
    learning_rate=3e-5,
    reduction="mean",
    batch_size=128,
    precision=None,
    function_images=20,
)
STRENGTHS: dict[str, tuple[float, ...]] = {
    "l2": (0.1, 10, 100, 1000),
    "fisher": (1e3, 1e4, 1e5, 1e6),
    "kfac": (10, 1e3, 1e4, 1e5),
    "function": (1, 10, 100, 1000),
}


def anchored_by(anchor: str, strength: float) -> famr.FAMR:
    """The penalised method with one anchor and nothing else."""
    if anchor == "function":
        return replace(PENALISED, strength=0.0, function_strength=strength)
    return replace(PENALISED, anchor=anchor, strength=strength)


CURVES = {
    f"{anchor} anchor, strength {strength:g}": Row(anchored_by(anchor, strength))
    for anchor, strengths in STRENGTHS.items()
    for strength in strengths
}
ROWS = {**METHODS, **CURVES}


def main() -> None:
    parser = parser_for(__doc__, "CIFAR-100")
    parser.add_argument("--classes", type=int, default=5)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", default=list(ROWS), choices=list(ROWS), metavar="NAME")
    parser.add_argument("--tuning", action="store_true", help="take classes on which settings may be chosen")
    arguments = parser.parse_args()
    data, seeds, models = open_parquet(arguments.data), arguments.seeds, arguments.models
    start = vit_tiny(arguments.weights, data.labels)
    class_seed = TUNING_SEED if arguments.tuning else CLASS_SEED
    facts = cifar100_facts("frontier-cifar100-vit_tiny", calibrated=True, class_seed=class_seed)
    results = Results(arguments.output, facts)
    names = drawn_classes(data.labels, arguments.classes, CLASS_SEED)
    if arguments.tuning:
        names = drawn_classes(data.labels, arguments.classes, TUNING_SEED, exclude=names)
    requests = {name: famr.Request(classes=[name]) for name in names}
    calibration = calibration_images(data.test)
    for seed in seeds:
        original = train_original(start, data, CIFAR100_TRAINING, seed, results, models)
        sketch = None
        for request in requests.values():
            missing = {
                label: ROWS[label]
                for label in arguments.methods
                if not results.has(name=label, request=request.to_json(), seed=seed)
                and (label in METHODS or seed == seeds[0])
            }
            if not missing:
                continue
            splits = famr.split(data, request)
            retrained = reference(start, splits, CIFAR100_TRAINING, seed, models)
            case = Case.with_calibration(original, retrained, splits, calibration)
            for label, (method, from_sketch) in missing.items():
                if from_sketch and sketch is None:
                    sketch = famr.take_sketch(original, replace(data, test=calibration))
                results.add(case.forget_or_error(label, method, seed, sketch if from_sketch else None))
    if not arguments.tuning and models is not None and len(seeds) > 1:
        results.content["js_between_retrained_seeds"] = {
            name: js_between([reference(start, famr.split(data, r), CIFAR100_TRAINING, s, models) for s in seeds])
            for name, r in requests.items()
        }
        results.save()


if __name__ == "__main__":
    main()
