"""How near is a run to models that never saw the forget set, by where its target comes from?

    python -m benchmarks.never_saw digits --output benchmarks/results/never_saw-digits.json
    python -m benchmarks.never_saw cifar100 --data DIR --weights FILE \
        --output benchmarks/results/never_saw-cifar100-vit_tiny.json

For each request some models are retrained without it; each stands in the table too, against the others: no method can
be expected to come closer. Doing nothing is a row. `--variants trials` compares proxies and edits instead of the four
defaults (everything at hand; a sketch and the data; a sketch and no data; no proxy). Held-out images that calibrate a
run are not scored. A row that is in the output is not computed again; models are kept in MODELS.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import famr
from benchmarks.cells import (
    CIFAR100_TRAINING,
    Results,
    Start,
    cifar100_facts,
    log,
    open_parquet,
    parser_for,
    small_vit,
    train_original,
    vit_tiny,
)
from benchmarks.references import Reference, reference
from famr.audit.two_sample import neighbour_order, two_sample_test
from famr.bench.tasks import drawn_classes
from famr.data import Data
from famr.data.augmentation import Augmentation
from famr.engine.devices import pick_device
from famr.engine.inference import predict_splits
from famr.metrics.forgetting import entropy
from famr.metrics.predictions import SplitPredictions
from famr.metrics.retraining import js_divergence
from famr.metrics.scores import accuracy
from famr.proxies.recipe import ALL_LAYERS, LATE_SHARE
from famr.targets.margins import margins

SCORED_SEED, TUNING_SEED = 2025, 7
"""Draws of the classes that are reported and of those that settings are chosen on; the latter leave out the former."""
SCORED_DIGITS_SEED = 2279
"""For digits: 0, 3, 5, 8, 9. A setting was chosen on the others, which 2025 draws, before these were set apart."""
DIGITS_TRAINING = famr.Training(
    epochs=20, batch_size=64, learning_rate=3e-3, augmentation=Augmentation(smallest_area=0.9, mirror=False)
)
QUIET = famr.Monitor(track_retain=False, rows=1)


@dataclass(frozen=True)
class Variant:
    """A way to forget.

    Attributes:
        method: The settings.
        recipe: Changes of the recipe by which a proxy is trained; epochs as a multiple of the default.
        steps: Steps of the edit, about; None: the default.
        sketch: Whether a sketch is at hand.
        data: Whether retained and held-out images are.
        known_start: Whether it is known where the original's training started.
    """

    method: famr.FAMR = field(default_factory=famr.FAMR)
    recipe: Mapping[str, float] = field(default_factory=dict)
    steps: int | None = None
    sketch: bool = False
    data: bool = True
    known_start: bool = True


THOROUGH = famr.FAMR(effort="thorough")
ADAM = replace(THOROUGH, optimiser="adam", learning_rate=2e-4, edited_share=0.25, function_images=20)
DEFAULTS = {
    "quick": Variant(famr.FAMR(effort="quick")),
    "thorough": Variant(THOROUGH),
    "thorough, sketch": Variant(THOROUGH, sketch=True),
    "thorough, sketch and no data": Variant(THOROUGH, sketch=True, data=False),
}
TRIALS = {
    "whole proxy": Variant(THOROUGH, {"late_share": 1.0}),
    "half of the layers": Variant(THOROUGH, {"late_share": 0.5}),
    "late layers at random": Variant(THOROUGH, {"late_share": 0.5}, known_start=False),
    "a quarter of the layers": Variant(THOROUGH, {"late_share": 0.25}),
    "half of the epochs": Variant(THOROUGH, {"epochs": 0.5}),
    "twice the epochs": Variant(THOROUGH, {"epochs": 2.0}),
    "50 steps": Variant(THOROUGH, steps=50),
    "300 steps": Variant(THOROUGH, steps=300),
    "half of the layers edited": Variant(replace(THOROUGH, edited_share=0.5)),
    "the head edited too": Variant(replace(THOROUGH, edit_head=True)),
    "no demotion": Variant(replace(THOROUGH, demotion=0.0)),
    "Adam, 300 steps": Variant(ADAM, steps=300),
    "Adam, 300 steps, no demotion": Variant(replace(ADAM, demotion=0.0), steps=300),
}


@dataclass(frozen=True)
class Setting:
    """Data, network and training.

    Attributes:
        data: The images.
        start: What training starts from.
        training: Of originals and references.
        facts: For the result file.
        scored_seed: Draw of the classes and samples that are reported.
        late_share: Share of the layers that a proxy trained for one request has of its own.
        classes: How many classes are forgotten, one at a time.
        samples: How many draws of a tenth of the images.
    """

    data: Data
    start: Start
    training: famr.Training
    facts: dict[str, Any]
    scored_seed: int
    late_share: float
    classes: int
    samples: int


def main() -> None:
    shared = parser_for(__doc__)
    shared.add_argument("setting", choices=["digits", "cifar100"])
    shared.add_argument("--data", type=Path, help="folder of CIFAR-100's Parquet files")
    shared.add_argument("--weights", type=Path, help="ImageNet weights of ViT-Ti/16")
    shared.add_argument("--models", type=Path, help="where originals and predictions of references are kept")
    shared.add_argument("--variants", choices=["defaults", "trials", "all"], default="defaults")
    shared.add_argument("--only", nargs="+", help="names of variants")
    shared.add_argument("--classes", type=int, help="how many")
    shared.add_argument("--samples", type=int, help="how many draws of a tenth of the training images")
    shared.add_argument("--tuning", action="store_true", help="classes and samples that are not reported")
    shared.add_argument("--seeds", type=int, nargs="+", default=[0])
    shared.add_argument("--references", type=int, default=5)
    shared.add_argument("--images", type=int, help="a trial: so many training images, and a tiny network")
    arguments = shared.parse_args()
    setting = open_setting(arguments)
    variants = {"defaults": DEFAULTS, "trials": TRIALS, "all": {**DEFAULTS, **TRIALS}}[arguments.variants]
    if arguments.only:
        variants = {name: variant for name, variant in {**DEFAULTS, **TRIALS}.items() if name in arguments.only}
    results = Results(
        arguments.output, {**setting.facts, "tuning": arguments.tuning, "references": arguments.references}
    )
    requests = drawn_requests(setting, arguments.tuning)
    for seed in arguments.seeds:
        run_seed(setting, seed, requests, variants, results, arguments.models)


def open_setting(arguments: argparse.Namespace) -> Setting:
    """What the command line names."""
    if arguments.setting == "digits":
        data = famr.open_data("digits")
        facts = {
            "benchmark": "never saw: digits",
            "data": "scikit-learn's digits, official split of famr",
            "model": "a ViT of two blocks, from random weights",
            "training": asdict(DIGITS_TRAINING),
        }
        classes = 5 if arguments.classes is None else arguments.classes
        samples = 1 if arguments.samples is None else arguments.samples
        return Setting(
            data, small_vit(data.labels), DIGITS_TRAINING, facts, SCORED_DIGITS_SEED, LATE_SHARE, classes, samples
        )
    data = open_parquet(arguments.data)
    facts = cifar100_facts("never saw: CIFAR-100")
    classes = 5 if arguments.classes is None else arguments.classes
    samples = 3 if arguments.samples is None else arguments.samples
    if arguments.images is None:
        training = replace(CIFAR100_TRAINING, compile=True)
        return Setting(
            data, vit_tiny(arguments.weights, data.labels), training, facts, SCORED_SEED, ALL_LAYERS, classes, samples
        )
    chosen = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(0))[: arguments.images]
    data = replace(data, train=data.train.take(chosen.sort().values))
    training = replace(CIFAR100_TRAINING, epochs=4, batch_size=64)
    start = small_vit(data.labels, img_size=32, patch_size=8)
    return Setting(data, start, training, {**facts, "data": "a trial"}, SCORED_SEED, LATE_SHARE, classes, samples)


def drawn_requests(setting: Setting, tuning: bool) -> list[famr.Request]:
    """Classes and samples by fixed draws; those for tuning leave out the reported classes."""
    labels = setting.data.labels
    scored = drawn_classes(labels, max(setting.classes, 1), setting.scored_seed)[: setting.classes]
    names = scored
    if tuning:
        reported = drawn_classes(labels, min(10, len(labels) // 2), setting.scored_seed)
        others = [name for name in labels if name not in reported]
        names = drawn_classes(tuple(others), max(setting.classes, 1), TUNING_SEED)[: setting.classes]
    requests = [famr.Request(classes=[name]) for name in names]
    count, seed = len(setting.data.train), TUNING_SEED if tuning else setting.scored_seed
    for draw in range(setting.samples):
        order = torch.randperm(count, generator=torch.Generator().manual_seed(1000 * seed + draw))
        requests.append(famr.Request(samples=order[: count // 10].sort().values.tolist()))
    return requests


def run_seed(
    setting: Setting,
    seed: int,
    requests: Sequence[famr.Request],
    variants: Mapping[str, Variant],
    results: Results,
    models: Path | None,
) -> None:
    """All rows of one original."""
    original = train_original(setting.start, setting.data, setting.training, seed, results, models)
    sketch = None
    if any(variant.sketch for variant in variants.values()):
        sketch = taken_sketch(setting, original, seed, results)
    for number, request in enumerate(requests):
        splits = famr.split(setting.data, request)
        seen, scored = famr.calibration_split(splits)
        count = results.content["references"]
        kept = [reference(setting.start, scored, setting.training, 1000 + each, models) for each in range(count)]
        case = RowCase(predict_splits(scored, original, pick_device("auto")), kept)
        key = {"request": f"{request.kind} {number}", "seed": seed}
        named = request.describe() if request.kind == "class" else f"{len(splits.forget)} samples, draw {number}"
        for name, predictions in {"original": case.original, **case.retrained()}.items():
            if not results.has(variant=name, **key):
                others = [each for each in kept if each.predictions is not predictions]
                results.add({"variant": name, "named": named, **key, **case.row(predictions, others)})
        for name, variant in variants.items():
            if not results.has(variant=name, **key):
                found = run_variant(variant, setting, original, seen, seed, sketch)
                row = (
                    found
                    if isinstance(found, dict)
                    else {
                        **case.row(predict_splits(scored, found.model, pick_device("auto")), kept),
                        **costs(found, kept),
                    }
                )
                results.add({"variant": name, "named": named, **key, **row})
                shown = {what: round(value, 3) for what, value in row.items() if isinstance(value, float)}
                log(f"seed {seed}, {named}, {name}: {shown}{row.get('error', '')}")


def taken_sketch(setting: Setting, original: famr.Classifier, seed: int, results: Results) -> famr.Sketch:
    """A sketch of an original, with ten proxies; its time goes into the results."""
    split = famr.calibration_split(famr.split(setting.data, famr.Request(classes=[setting.data.labels[0]])))
    data = replace(setting.data, test=split.for_forgetting.test)
    recipe = famr.ProxyRecipe(setting.training, setting.start(seed))
    begun = time.perf_counter()
    sketch = famr.take_sketch(original, data, proxies=10, recipe=recipe, seed=seed)
    seconds = time.perf_counter() - begun
    assert sketch.proxies is not None
    stored = sum(tensor.nbytes for tensor in sketch.proxies.tensors().values())
    results.content.setdefault("sketches", {})[str(seed)] = {"seconds": seconds, "bytes_of_proxies": stored}
    results.save()
    log(f"sketch, seed {seed}: {seconds:.1f} s, {stored / 2**20:.0f} MiB of proxies")
    return sketch


def run_variant(
    variant: Variant,
    setting: Setting,
    original: famr.Classifier,
    seen: famr.Splits,
    seed: int,
    sketch: famr.Sketch | None,
) -> famr.Unlearned | dict[str, Any]:
    """The run, or why there is none. Settings relative to the original's own are made absolute here."""
    method, recipe = variant.method, famr.ProxyRecipe(setting.training)
    if variant.steps is not None:
        method = replace(method, epochs=max(1, round(variant.steps / -(-len(seen.forget) // method.batch_size))))
    if variant.known_start:
        recipe = replace(recipe, start=setting.start(seed))
    recipe = replace(recipe, late_share=variant.recipe.get("late_share", setting.late_share))
    epochs = variant.recipe.get("epochs", 1.0) * recipe.short_training.epochs
    recipe = replace(recipe, epochs=max(1, round(epochs)))
    splits = seen if variant.data else famr.forget_only(seen.forget, seen.labels)
    try:
        return famr.forget(
            original, splits, method, sketch=sketch if variant.sketch else None, recipe=recipe, seed=seed, monitor=QUIET
        )
    except famr.FamrError as error:
        return {"error": f"{error.what} {error.where}"}


def costs(run: famr.Unlearned, references: Sequence[Reference]) -> dict[str, Any]:
    """What a run cost beside a retraining, and how it was made."""
    retraining = min(each.seconds for each in references)
    assert run.seconds_of_all is not None
    return {
        "seconds": run.seconds_of_all,
        "seconds_of_steps": run.seconds,
        "share_of_retraining": run.seconds_of_all / retraining,
        "why": run.why,
        "method": run.method.to_json(),
        "temperature_of_proxy": None if run.proxy is None else float(run.proxy.temperature.mean()),
    }


@dataclass(frozen=True)
class RowCase:
    """A request with the original's predictions and those of the references."""

    original: SplitPredictions
    references: Sequence[Reference]

    def retrained(self) -> dict[str, SplitPredictions]:
        """Predictions of each reference."""
        return {f"retrained {number}": each.predictions for number, each in enumerate(self.references)}

    def row(self, model: SplitPredictions, references: Sequence[Reference]) -> dict[str, Any]:
        """Distances of a model from references, and accuracies."""
        ours, theirs = model.forget.logits, [each.predictions.forget.logits for each in references]
        targets = model.forget.targets
        nearest = neighbour_order(self.original.forget.logits, targets)
        mean_margins = torch.stack([margins(each, targets) for each in theirs]).mean(dim=0)
        retained = [accuracy(each.predictions.test) for each in references]
        own = accuracy(model.test)
        assert own is not None
        return {
            "js": sum(float(js_divergence(ours, each).mean()) for each in theirs) / len(theirs),
            "tell_tale": two_sample_test(ours, theirs, nearest).auc,
            "entropy": float(entropy(ours).mean()),
            "log_odds": float(margins(ours, targets).mean()),
            "correlation": correlation(margins(ours, targets), mean_margins),
            "forget_accuracy": accuracy(model.forget),
            "retain_accuracy": own,
            "retain_accuracy_gap": own - sum(each or 0.0 for each in retained) / len(retained),
            "forget_accuracy_gap": (accuracy(model.forget) or 0.0)
            - sum(accuracy(each.predictions.forget) or 0.0 for each in references) / len(references),
        }


def correlation(one: Tensor, other: Tensor) -> float:
    """Pearson's correlation."""
    return float(torch.corrcoef(torch.stack([one.double(), other.double()]))[0, 1])


if __name__ == "__main__":
    main()
