"""The other requests on CIFAR-100 with ViT-Ti: superclasses, random samples, and one class after another.

    python -m benchmarks.requests_cifar100 --data DIR --weights FILE \
        --output benchmarks/results/requests-cifar100-vit_tiny.json

The default method on each, the retrained model beside it. Methods may see one test image in five; the other ones are
scored. For samples: Avg. Gap over forget, retain and test accuracy and MIA-efficacy.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import torch

import famr
from benchmarks.cells import (
    CIFAR100_TRAINING,
    CLASS_SEED,
    Case,
    Results,
    calibration_images,
    cifar100_facts,
    drawn_samples,
    log,
    open_parquet,
    parser_for,
    train_original,
    vit_tiny,
)
from benchmarks.references import reference
from famr.bench.scoring import ImageScores
from famr.bench.tasks import drawn_classes
from famr.data import Images
from famr.data.dataset import Data
from famr.data.splits import EarlierRequest
from famr.engine.inference import accuracy_on_images, predict, predict_splits
from famr.metrics.membership import mia_efficacy
from famr.metrics.predictions import Predictions
from famr.metrics.retraining import average_gap

MONITOR = famr.Monitor(track_retain=False)


def main() -> None:
    parser = parser_for(__doc__, "CIFAR-100")
    parser.add_argument("--superclasses", nargs="*", default=["fish"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--kinds", nargs="+", default=["concept", "samples", "sequence"])
    parser.add_argument("--passes", type=int, nargs="*", default=[2, 4], help="also so many passes over the samples")
    arguments = parser.parse_args()
    data = open_parquet(arguments.data)
    start = vit_tiny(arguments.weights, data.labels)
    facts = cifar100_facts("requests-cifar100-vit_tiny", calibrated=True, class_seed=CLASS_SEED)
    results = Results(arguments.output, facts)
    requests = [("concept", famr.Request(concept=("superclass", name))) for name in arguments.superclasses]
    requests += [("samples", famr.Request(samples=drawn_samples(data).tolist()))]
    requests += [("sequence", famr.Request(classes=drawn_classes(data.labels, 5, CLASS_SEED)))]
    for seed in arguments.seeds:
        original = train_original(start, data, CIFAR100_TRAINING, seed, results, arguments.models)
        for kind, request in requests:
            key = {"kind": kind, "forgotten": request.describe(), "seed": seed}
            if kind not in arguments.kinds or results.has(**key):
                continue
            splits = famr.split(data, request)
            retrained = reference(start, splits, CIFAR100_TRAINING, seed, arguments.models)
            case = Case.with_calibration(original, retrained, splits, calibration_images(data.test))
            if kind == "concept":
                results.add({**key, **case.forget("default", famr.FAMR(effort="quick"), seed, track=False)})
            elif kind == "sequence":
                results.add({**key, **sequence(case, data, request, seed)})
            else:
                results.add({**key, **samples(case, seed)})
                for passes in arguments.passes:
                    results.add({**key, "kind": f"samples, {passes} passes", **samples(case, seed, passes)})


def samples(case: Case, seed: int, passes: int | None = None) -> dict[str, Any]:
    """Random training images; the metrics of Avg. Gap for the original, the unlearned and the retrained model."""
    start = time.perf_counter()
    result = famr.forget(case.original, case.method_splits, famr.FAMR(epochs=passes), seed=seed, monitor=MONITOR)
    seconds = time.perf_counter() - start
    retrained = case.retrained
    assert retrained.retain is not None
    assert retrained.predictions.test is not None
    metrics = {
        "original": _metrics(case, case.original, seed),
        "unlearned": _metrics(case, result.model, seed),
        "retrained": _gap_metrics(retrained.predictions.forget, retrained.retain, retrained.predictions.test, seed),
    }
    gaps = {name: average_gap(metrics[name], metrics["retrained"]) for name in ("original", "unlearned")}
    share = seconds / retrained.seconds
    log(
        f"samples, seed {seed}: Avg. Gap {gaps['unlearned']:.4f}, original {gaps['original']:.4f}; "
        f"{share:.3f} of the time; {metrics}"
    )
    return {
        **metrics,
        "average_gap": gaps,
        "seconds": {"unlearned": result.seconds, "with_preparation": seconds, "retrained": retrained.seconds},
        "method": result.method.to_json(),
        "why": result.why,
        "trials": len(result.trials),
    }


def _metrics(case: Case, model: famr.Classifier, seed: int) -> dict[str, float]:
    assert case.splits.retain is not None
    assert case.splits.test is not None
    forget = predict_splits(case.splits, model, case.device).forget
    retain = ImageScores.of(predict(model, case.splits.retain, case.device))
    return _gap_metrics(forget, retain, predict(model, case.splits.test, case.device), seed)


def _gap_metrics(forget: Predictions, retain: ImageScores, test: Predictions, seed: int) -> dict[str, float]:
    """Forget, retain and test accuracy, and MIA-efficacy."""
    forgotten, held_out = ImageScores.of(forget), ImageScores.of(test)
    return {
        "forget_accuracy": float(forgotten.correct.mean()),
        "retain_accuracy": float(retain.correct.mean()),
        "test_accuracy": float(held_out.correct.mean()),
        "mia_efficacy": mia_efficacy(retain.probability, held_out.probability, forgotten.probability, seed),
    }


def sequence(case: Case, data: Data, request: famr.Request, seed: int) -> dict[str, Any]:
    """One class after another, each from the model that the last request left."""
    calibration_ids = set(calibration_images(data.test).ids)
    model, steps = case.original, []
    earlier: list[EarlierRequest] = []
    for name in request.classes:
        splits = famr.split(data, famr.Request(classes=[name]), earlier)
        assert splits.test is not None
        calibration = splits.test.where(torch.tensor([id_ in calibration_ids for id_ in splits.test.ids]))
        result = famr.forget(model, replace(splits, test=calibration), seed=seed, monitor=MONITOR)
        model = result.model
        earlier.append(EarlierRequest(result.request, (name,), result.drift))
        steps.append({"class": name, "drift": result.drift, "seconds": result.seconds, "trials": len(result.trials)})
    device = case.device
    assert case.splits.test is not None
    assert case.splits.forget_test is not None
    by_class = {
        name: {
            "forget_accuracy": accuracy_on_images(model, _of_class(case.splits.forget, data, name), device),
            "forget_test_accuracy": accuracy_on_images(model, _of_class(case.splits.forget_test, data, name), device),
        }
        for name in request.classes
    }
    test = case.retrained.predictions.test
    assert test is not None
    retain = {
        "original": accuracy_on_images(case.original, case.splits.test, device),
        "unlearned": accuracy_on_images(model, case.splits.test, device),
        "retrained": float(ImageScores.of(test).correct.mean()),
    }
    log(f"sequence, seed {seed}: {retain}, {by_class}")
    return {"retain_accuracy": retain, "classes": by_class, "steps": steps}


def _of_class(images: Images, data: Data, name: str) -> Images:
    return images.where(images.targets == data.labels.index(name))


if __name__ == "__main__":
    main()
