"""Targets and anchors beside the paper's algorithm: CIFAR-100, ViT-Ti, several classes and seeds, one retraining each.

    python -m benchmarks.frontier_cifar100 --data DIR --weights FILE \
        --output benchmarks/results/frontier-cifar100-vit_tiny.json

Every method of `METHODS` forgets the same class from the same original and is held against the same retrained model;
`CURVES`, which follow one anchor each from loose to firm, do so for the first seed. One test image in five is shown to
the methods (for the temperature); the others are scored. `--tuning` takes other classes than those that are reported:
settings are chosen there.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import NamedTuple

import famr
from benchmarks.cells import Case, Results, drawn_classes, log, one_in_five, train_original, usual_arguments, vit_tiny
from benchmarks.paper_cifar100 import CLASS_SEED, TRAINING
from benchmarks.references import Reference, reference
from famr.metrics.retraining import js_divergence

TUNING_SEED = 7
DEFAULT = famr.FAMR()


class Row(NamedTuple):
    """A method, and whether it sees nothing but the forget images and a sketch."""

    method: famr.FAMR
    alone: bool = False


METHODS = {
    "paper": Row(famr.FAMR.paper()),
    "uniform, 20 images a class": Row(replace(DEFAULT, target="uniform", epochs=24)),
    "uniform, free head, 20 images a class": Row(replace(DEFAULT, target="uniform", epochs=24, edit_head=True)),
    "default, sketch only": Row(DEFAULT, alone=True),
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


def held_by(anchor: str, strength: float) -> famr.FAMR:
    """The penalised method with one anchor and nothing else."""
    if anchor == "function":
        return replace(PENALISED, strength=0.0, function_strength=strength)
    return replace(PENALISED, anchor=anchor, strength=strength)


CURVES = {
    f"{anchor} anchor, strength {strength:g}": Row(held_by(anchor, strength))
    for anchor, strengths in STRENGTHS.items()
    for strength in strengths
}
ROWS = {**METHODS, **CURVES}


def main() -> None:
    parser = usual_arguments(__doc__, "CIFAR-100")
    parser.add_argument("--classes", type=int, default=5)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", default=list(ROWS), choices=list(ROWS), metavar="NAME")
    parser.add_argument("--tuning", action="store_true", help="take classes on which settings may be chosen")
    arguments = parser.parse_args()
    data = famr.open_data(f"parquet:{arguments.data}")
    start = vit_tiny(arguments.weights, data.labels)
    scored = drawn_classes(data.labels, arguments.classes, CLASS_SEED)
    facts = {
        "benchmark": "frontier-cifar100-vit_tiny",
        "data": "CIFAR-100, official split, resized to 224 px; 4 of 5 test images scored, the others shown",
        "model": "timm:vit_tiny_patch16_224, ImageNet weights, fine-tuned",
        "training": asdict(TRAINING),
        "class_seed": TUNING_SEED if arguments.tuning else CLASS_SEED,
    }
    results = Results(arguments.output, facts)
    shown = one_in_five(data.test)
    names = scored
    if arguments.tuning:
        others = drawn_classes(data.labels, len(data.labels), TUNING_SEED)
        names = [name for name in others if name not in scored][: arguments.classes]
    for seed in arguments.seeds:
        original = train_original(start, data, TRAINING, seed, results, arguments.models)
        sketch = None
        for name in names:
            request = famr.Request(classes=[name])
            missing = {
                label: ROWS[label]
                for label in arguments.methods
                if not results.has(name=label, request=request.to_json(), seed=seed)
                and (label in METHODS or seed == arguments.seeds[0])
            }
            if not missing:
                continue
            splits = famr.split(data, request)
            retrained = reference(start, splits, TRAINING, seed, arguments.models)
            case = Case.with_test_apart(original, retrained, splits, shown)
            for label, (method, alone) in missing.items():
                if alone and sketch is None:
                    sketch = famr.take_sketch(original, replace(data, test=shown))
                try:
                    cell = case.forget(label, method, seed, track=False, sketch=sketch if alone else None)
                except famr.FamrError as error:
                    log(f"{label}: {error}")
                    cell = {"name": label, "request": request.to_json(), "seed": seed, "error": error.what}
                results.add(cell)
    if not arguments.tuning and arguments.models is not None and len(arguments.seeds) > 1:
        results.content["js_between_retrained_seeds"] = {
            name: _between_seeds([reference(start, splits, TRAINING, s, arguments.models) for s in arguments.seeds])
            for name in names
            for splits in [famr.split(data, famr.Request(classes=[name]))]
        }
        results.save()


def _between_seeds(found: list[Reference]) -> list[float]:
    """JS of each pair of retrained models on the forget set: what no unlearned model can be asked to beat."""
    pairs = [(a, b) for place, a in enumerate(found) for b in found[:place]]
    return [float(js_divergence(a.answers.forget.logits, b.answers.forget.logits).mean()) for a, b in pairs]


if __name__ == "__main__":
    main()
