"""The other requests on CIFAR-100 with ViT-Ti: superclasses, random samples, and one class after another.

    python -m benchmarks.requests_cifar100 --data DIR --weights FILE \
        --output benchmarks/results/requests-cifar100-vit_tiny.json

The default method on each, the retrained model beside it. One test image in five is shown to the method; the others are
scored. For samples: Avg. Gap over forget, retain and test accuracy and MIA-efficacy.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import torch

import famr
from benchmarks.cells import Case, Results, drawn_classes, log, one_in_five, train_original, usual_arguments, vit_tiny
from benchmarks.paper_cifar100 import CLASS_SEED, TRAINING
from benchmarks.references import Reference, Retained, reference
from famr.data import Images
from famr.data.dataset import Data
from famr.data.splits import EarlierRequest
from famr.engine.devices import pick_device
from famr.engine.inference import accuracy_on_images, predict, predict_splits
from famr.metrics.membership import mia_efficacy
from famr.metrics.predictions import Predictions
from famr.metrics.retraining import average_gap

SAMPLE_SHARE = 10
UNWATCHED = famr.Monitor(track_retain=False)


def main() -> None:
    parser = usual_arguments(__doc__, "CIFAR-100")
    parser.add_argument("--superclasses", nargs="*", default=["fish"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--kinds", nargs="+", default=["concept", "samples", "sequence"])
    parser.add_argument("--passes", type=int, nargs="*", default=[2, 4], help="also so many passes over the samples")
    arguments = parser.parse_args()
    data = famr.open_data(f"parquet:{arguments.data}", label_column="label")
    start = vit_tiny(arguments.weights, data.labels)
    facts = {
        "benchmark": "requests-cifar100-vit_tiny",
        "data": "CIFAR-100, official split, resized to 224 px; 4 of 5 test images scored, the others shown",
        "model": "timm:vit_tiny_patch16_224, ImageNet weights, fine-tuned",
        "training": asdict(TRAINING),
        "class_seed": CLASS_SEED,
    }
    results = Results(arguments.output, facts)
    five = drawn_classes(data.labels, 5, CLASS_SEED)
    draws = torch.Generator().manual_seed(CLASS_SEED)
    some = torch.randperm(len(data.train), generator=draws)[: len(data.train) // SAMPLE_SHARE].sort().values.tolist()
    requests = [("concept", famr.Request(concept=("superclass", name))) for name in arguments.superclasses]
    requests += [("samples", famr.Request(samples=some)), ("sequence", famr.Request(classes=five))]
    cell_of: dict[str, Callable[..., dict[str, Any]]] = {"concept": concept, "samples": samples, "sequence": sequence}
    for seed in arguments.seeds:
        original = train_original(start, data, TRAINING, seed, results, arguments.models)
        for kind, request in requests:
            key = {"kind": kind, "forgotten": request.describe(), "seed": seed}
            if kind not in arguments.kinds or results.has(**key):
                continue
            retrained = reference(start, famr.split(data, request), TRAINING, seed, arguments.models)
            cell = cell_of[kind](original, retrained, data, request, one_in_five(data.test), seed)
            results.add({**key, **cell})
            if kind == "samples":
                for passes in arguments.passes:
                    cell = samples(original, retrained, data, request, one_in_five(data.test), seed, passes)
                    results.add({**key, "kind": f"samples, {passes} passes", **cell})


def concept(
    original: famr.Classifier, retrained: Reference, data: Data, request: famr.Request, shown: Images, seed: int
) -> dict[str, Any]:
    """A superclass of five classes at once, by the default method."""
    case = Case.with_test_apart(original, retrained, famr.split(data, request), shown)
    return case.forget("default", famr.FAMR(), seed, track=False)


def samples(
    original: famr.Classifier,
    retrained: Reference,
    data: Data,
    request: famr.Request,
    shown: Images,
    seed: int,
    passes: int | None = None,
) -> dict[str, Any]:
    """Random training images; the measures of Avg. Gap for the original, the unlearned and the retrained model."""
    case = Case.with_test_apart(original, retrained, famr.split(data, request), shown)
    begin = time.perf_counter()
    result = famr.forget(original, case.seen, famr.FAMR(epochs=passes), seed=seed, monitor=UNWATCHED)
    whole = time.perf_counter() - begin
    assert case.splits.retain is not None
    assert retrained.retain is not None
    found = {
        name: _measures(predict_splits(case.splits, model, case.device).forget, model, case, seed)
        for name, model in (("original", original), ("unlearned", result.model))
    }
    test = case.retrained.answers.test
    assert test is not None
    found["retrained"] = _membership(case.retrained.answers.forget, retrained.retain, test, seed)
    gaps = {name: average_gap(found[name], found["retrained"]) for name in ("original", "unlearned")}
    share = whole / retrained.seconds
    log(
        f"samples, seed {seed}: Avg. Gap {gaps['unlearned']:.4f}, original {gaps['original']:.4f}; "
        f"{share:.3f} of the time; {found}"
    )
    return {
        **found,
        "average_gap": gaps,
        "seconds": {"unlearned": result.seconds, "with_preparation": whole, "retrained": retrained.seconds},
        "method": result.method.to_json(),
        "why": result.why,
        "trials": len(result.trials),
    }


def _measures(forget: Predictions, model: famr.Classifier, case: Case, seed: int) -> dict[str, float]:
    assert case.splits.retain is not None
    assert case.splits.test is not None
    retain = Retained.of(predict(model, case.splits.retain, case.device))
    return _membership(forget, retain, predict(model, case.splits.test, case.device), seed)


def _membership(forget: Predictions, retain: Retained, test: Predictions, seed: int) -> dict[str, float]:
    """Forget, retain and test accuracy, and MIA-efficacy."""
    forgotten, unseen = Retained.of(forget), Retained.of(test)
    return {
        "forget_accuracy": float(forgotten.correct.mean()),
        "retain_accuracy": float(retain.correct.mean()),
        "test_accuracy": float(unseen.correct.mean()),
        "mia_efficacy": mia_efficacy(retain.probability, unseen.probability, forgotten.probability, seed),
    }


def sequence(
    original: famr.Classifier, retrained: Reference, data: Data, request: famr.Request, shown: Images, seed: int
) -> dict[str, Any]:
    """One class after another, each from the model that the last request left."""
    case = Case.with_test_apart(original, retrained, famr.split(data, request), shown)
    model, steps = original, []
    earlier: list[EarlierRequest] = []
    for name in request.classes:
        splits = famr.split(data, famr.Request(classes=[name]), earlier)
        assert splits.test is not None
        ids = set(shown.ids)
        held_out = splits.test.where(torch.tensor([id_ in ids for id_ in splits.test.ids]))
        result = famr.forget(model, replace(splits, test=held_out), seed=seed, monitor=UNWATCHED)
        model = result.model
        earlier.append(EarlierRequest(result.request, (name,), result.drift))
        steps.append({"class": name, "drift": result.drift, "seconds": result.seconds, "trials": len(result.trials)})
    place = pick_device("auto")
    assert case.splits.test is not None
    assert case.splits.forget_test is not None
    target = {name: data.labels.index(name) for name in request.classes}
    by_class = {
        name: {
            "forget_accuracy": accuracy_on_images(model, _of(case.splits.forget, index), place),
            "forget_test_accuracy": accuracy_on_images(model, _of(case.splits.forget_test, index), place),
        }
        for name, index in target.items()
    }
    test = case.retrained.answers.test
    assert test is not None
    retain = {
        "original": accuracy_on_images(original, case.splits.test, place),
        "unlearned": accuracy_on_images(model, case.splits.test, place),
        "retrained": float(Retained.of(test).correct.mean()),
    }
    log(f"sequence, seed {seed}: {retain}, {by_class}")
    return {"retain_accuracy": retain, "classes": by_class, "steps": steps}


def _of(images: Images, target: int) -> Images:
    return images.where(images.targets == target)


if __name__ == "__main__":
    main()
