"""The audit on CIFAR-100 with ViT-Ti: three classes and a tenth of the images; the paper, quick and thorough runs.

    python -m benchmarks.audit_cifar100 --data DIR --weights FILE \
        --output benchmarks/results/audits-cifar100-vit_tiny.json

Beside the methods stand the original (doing nothing is a row of every table), five models retrained without the
request, one that never saw it and was trained for a quarter of the epochs, an edit of the head alone, and a model that
predicts one class. The images that calibrate a method are none that it is scored on. Models are kept in MODELS, and
a request that is in the output is not audited again.

With `--shadows 64` U-LiRA takes shadow models for the first class and for the samples; `--train-shadows 0-15` trains
some of them, keeps what U-LiRA reads of them beside the output, and ends. So several sessions add up.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from sklearn.metrics import roc_curve
from torch import Tensor

import famr
from benchmarks.audit_shadows import CLASS, SAMPLES, ShadowModels, ShadowSetting
from benchmarks.cells import (
    CIFAR100_TRAINING,
    CLASS_SEED,
    Results,
    Start,
    cifar100_facts,
    drawn_samples,
    log,
    open_parquet,
    parser_for,
    small_vit,
    train_original,
    vit_tiny,
)
from famr.audit.audit import Against, AuditSettings, audit_methods
from famr.audit.controls import NEVER_SAW_EPOCHS
from famr.audit.costs import PartDone
from famr.audit.lira import u_lira_scores
from famr.audit.shadow_logits import FEWEST_MODELS, ShadowLogits
from famr.bench.tasks import drawn_classes
from famr.data import Data
from famr.data.splits import Splits
from famr.engine.devices import pick_device
from famr.engine.inference import predict
from famr.metrics.forgetting import entropy

METHODS = {
    "paper": replace(famr.FAMR.paper(), precision=None),
    "quick": famr.FAMR(effort="quick"),
    "thorough": famr.FAMR(effort="thorough"),
}
"""The paper's preset in the precision of the device, as it is run many times for shadows."""
CLASSES = 3
REFERENCES = 5
POINTS = 60
"""Points of a ROC curve that are kept for the figure."""
BINS = 24
TRIAL_CLASSES = 8
TRIAL_NETWORK = {"img_size": 32, "patch_size": 8}


def main() -> None:
    parser = parser_for(__doc__, "CIFAR-100")
    parser.add_argument("--references", type=int, default=REFERENCES, help="retrained models a request")
    parser.add_argument("--requests", type=int, nargs="+", default=[0, 1, 2, 3], help="0 to 2: classes; 3: samples")
    parser.add_argument("--shadows", type=int, default=0, help="shadow models of the first class and of the samples")
    parser.add_argument("--train-shadows", metavar="FIRST-LAST", help="train these shadow models, and run no audit")
    parser.add_argument("--quick", action="store_true", help="leave out the attacks that train")
    parser.add_argument("--images", type=int, help="a trial: so many images of eight classes, and a tiny network")
    arguments = parser.parse_args()
    data = open_parquet(arguments.data)
    training, start = replace(CIFAR100_TRAINING, compile=True), vit_tiny(arguments.weights, data.labels)
    names = drawn_classes(data.labels, CLASSES, CLASS_SEED)
    facts = cifar100_facts("audits-cifar100-vit_tiny", class_seed=CLASS_SEED)
    if arguments.images is not None:
        data = shortened(data, names, arguments.images)
        training = replace(training, epochs=12, batch_size=32, learning_rate=2e-3, compile=None)
        start = small_vit(data.labels, **TRIAL_NETWORK)
        facts |= {"data": f"a trial with {arguments.images} images", "model": "a ViT of two blocks, at random"}
    facts |= {"training": asdict(training), "references": arguments.references, "shadows": arguments.shadows}
    samples = drawn_samples(data)
    samples = samples[data.train.targets[samples] != data.labels.index(names[0])]  # shadows may lack the whole class
    requests = [*(famr.Request(classes=[name]) for name in names), famr.Request(samples=samples.tolist())]
    setting = ShadowSetting(start, data, training, names[0], samples, METHODS, arguments.shadows)
    shadows = ShadowModels(setting, arguments.output.with_suffix(".shadows.safetensors"))
    unlearnings = [(kind, method) for kind in (CLASS, SAMPLES) for method in METHODS]
    if arguments.train_shadows is not None:
        first, last = map(int, arguments.train_shadows.split("-"))
        shadows.prepare(unlearnings, range(first, last + 1))
        log(f"{len(shadows.done(unlearnings))} of {arguments.shadows} shadow models are done")
        return
    results = Results(arguments.output, facts)
    models = arguments.models or arguments.output.parent / "models"
    original = train_original(start, data, training, 0, results, models)
    for number in arguments.requests:
        request = requests[number]
        if results.has(request=request.describe()):
            continue
        models_of_request = train_alone(start, data, request, training, models / f"request-{number}", arguments)
        found = {}
        if number in (0, CLASSES):
            found = {method: shadows.logits(SAMPLES if number else CLASS, method) for method in METHODS}
        given = {method: logits for method, logits in found.items() if logits is not None}
        recipe = famr.ProxyRecipe(training, start(0), late_share=1.0)
        results.add(audit_cell(original, recipe, models_of_request, given, arguments.quick))


@dataclass(frozen=True, eq=False)
class TrainedAlone:
    """A request with the models that were trained without it.

    Attributes:
        splits: Its sets.
        references: Trained as the original.
        never_saw: Trained for a fraction of the epochs.
        seconds: Of the training of one reference.
    """

    splits: Splits
    references: Sequence[famr.Classifier]
    never_saw: famr.Classifier
    seconds: float


def train_alone(
    start: Start, data: Data, request: famr.Request, training: famr.Training, folder: Path, arguments: Any
) -> TrainedAlone:
    """Train what is missing in the folder; the run folders hold the records that audits read."""
    splits = famr.split(data, request)
    retain, seconds = splits.retain, []
    assert retain is not None

    def model(name: str, settings: famr.Training, seed: int) -> famr.Classifier:
        if not (folder / name).is_dir():
            trained = famr.fit(start(seed), retain, settings, seed=seed)
            trained.save(folder / name, without=request, left_out=splits.forget)
            seconds.append(trained.seconds)
            log(f"{request.describe()}, {name}: {trained.seconds:.1f} s")
        return famr.load_model(str(folder / name))

    short = replace(training, epochs=max(1, training.epochs // NEVER_SAW_EPOCHS))
    never_saw = model("never-saw", short, 200)
    seconds.clear()
    references = [model(f"retrained-{seed}", training, seed) for seed in range(1, arguments.references + 1)]
    return TrainedAlone(splits, references, never_saw, min(seconds, default=float("nan")))


def audit_cell(
    original: famr.Classifier,
    recipe: famr.ProxyRecipe,
    alone: TrainedAlone,
    shadows: dict[str, ShadowLogits],
    quick: bool,
) -> dict[str, Any]:
    """Forget by each method and audit all results at once; the gates, the costs, and the data of the figures."""
    split = famr.calibration_split(alone.splits)
    unlearned, forgetting = {}, {}
    for method, numbers in METHODS.items():
        monitor = famr.Monitor(track_retain=False, rows=1)
        result = famr.forget(original, split.for_forgetting, numbers, recipe=recipe, seed=0, monitor=monitor)
        unlearned[method], forgetting[method] = result.model, result.seconds_of_all
    by_model: dict[str, float] = {}
    begun = last = time.perf_counter()

    def on_part(part: PartDone) -> None:
        nonlocal last
        now = time.perf_counter()
        by_model[part.name], last = now - last, now

    against = Against(original, alone.references, alone.never_saw)
    settings = AuditSettings(quick=quick, on_part=on_part)
    audits = audit_methods(unlearned, split.for_scoring, against, settings, shadows)
    seconds = {
        "forgetting": forgetting,
        "retraining": alone.seconds,
        "audits": time.perf_counter() - begun,
        "by_model": by_model,
        "by_part": dict(next(iter(audits.values())).costs),
    }
    for method, report in audits.items():
        log(f"{report.subject['request']['kind']}, {method}: {report.to_json()['sentence']}")
        for check in report.checks:
            values = {name: None if f.value is None else round(f.value, 3) for name, f in check.figures.items()}
            log(f"  {check.name}: {values}, allowed {check.allowed:.3f}, {dict(check.verdicts)}; {check.not_counted}")
    log(f"seconds: { ({part: value for part, value in seconds.items() if part != 'by_model'}) }")
    models = {"original": original, "retrained": alone.references[0], "never saw": alone.never_saw, **unlearned}
    device = pick_device("auto")
    return {
        "request": alone.splits.request.describe(),
        "kind": alone.splits.request.kind,
        "forget_images": len(alone.splits.forget),
        "audits": {method: report.to_json() for method, report in audits.items()},
        "seconds": seconds,
        "roc": {method: roc_curves(logits) for method, logits in shadows.items()},
        "entropy": {
            name: histogram(entropy(predict(model, alone.splits.forget, device).logits))
            for name, model in models.items()
        },
    }


def roc_curves(shadows: ShadowLogits) -> dict[str, dict[str, list[float]]]:
    """U-LiRA on the models that unlearned, and LiRA on them before they did."""
    kinds = {"unlearned": shadows.unlearned, "original": shadows.trained}
    return {
        kind: roc_points(logits, shadows.retrained, shadows.targets)
        for kind, logits in kinds.items()
        if logits is not None and min(len(logits), len(shadows.retrained)) >= FEWEST_MODELS
    }


def roc_points(with_data: Tensor, without_data: Tensor, targets: Tensor) -> dict[str, list[float]]:
    """The ROC of U-LiRA at rates that are evenly spaced on a log scale, from logits (models, images, classes)."""
    scored = u_lira_scores(with_data, without_data, targets)
    used = scored.seen | scored.unseen
    scores, seen = scored.scores[used], scored.seen[used]
    fpr, tpr = (torch.from_numpy(rate) for rate in roc_curve(seen.numpy(), scores.numpy(), drop_intermediate=False)[:2])
    at = torch.logspace(-4, 0, POINTS, dtype=torch.double)
    index = torch.searchsorted(fpr, at, right=True).sub(1).clamp(min=0)
    return {"fpr": at.tolist(), "tpr": tpr[index].tolist()}


def histogram(values: Tensor) -> dict[str, list[float]]:
    """Shares of images by entropy, in nats."""
    counts, edges = torch.histogram(values.double().cpu(), bins=BINS, range=(0.0, 4.8))
    return {"edges": edges.tolist(), "share": (counts / len(values)).tolist()}


def shortened(data: Data, names: Sequence[str], count: int) -> Data:
    """Some images of a few classes, the named ones among them."""
    assert data.test is not None
    first = [data.labels.index(name) for name in names]
    others = [index for index in range(len(data.labels)) if index not in first][: TRIAL_CLASSES - len(first)]
    classes, draws = torch.tensor(first + others), torch.Generator().manual_seed(0)
    parts = []
    for images in (data.train, data.test):
        some = images.where(torch.isin(images.targets, classes))
        parts.append(some.take(torch.randperm(len(some), generator=draws)[:count]))
    return replace(data, train=parts[0], test=parts[1])


if __name__ == "__main__":
    main()
