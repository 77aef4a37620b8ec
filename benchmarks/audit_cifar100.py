"""The audit on CIFAR-100 with ViT-Ti: original, retrained, the paper's preset and the default; a class and samples.

    python -m benchmarks.audit_cifar100 --data DIR --weights FILE \
        --output benchmarks/results/audit-cifar100-vit_tiny.json

References are retrained without the whole request, one a seed. For U-LiRA come 16 shadow models: each is trained
without a random half of the forgotten samples, and every other one without the class, so that each image and the class
are in half of them. Each shadow then unlearns what it saw. The attacker is told everything but that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import famr
from benchmarks.cells import Results, drawn_classes, log, train_original, usual_arguments, vit_tiny
from benchmarks.paper_cifar100 import CLASS_SEED, TRAINING
from famr.audits.audit import audit
from famr.audits.lira import u_lira_scored
from famr.audits.populations import Populations
from famr.audits.roc import Curve
from famr.data import Data, Images
from famr.devices import pick_device
from famr.evaluation import answers
from famr.metrics.forgetting import entropy
from famr.splits import Splits

SAMPLE_SHARE = 10
METHODS = {"default": famr.FAMR(), "paper": replace(famr.FAMR.paper(), precision=None)}
"""The paper's preset in the precision of the device, as it is run many times."""
POINTS = 60
"""Places of a ROC curve that are kept for the figure."""
BINS = 24

Start = Callable[[int], famr.Classifier]


def main() -> None:
    parser = usual_arguments(__doc__, "CIFAR-100")
    parser.add_argument("--references", type=int, default=2, help="retrained models a request")
    parser.add_argument("--shadows", type=int, default=16)
    parser.add_argument("--shadow-epochs", type=int, default=4, help="fewer than of the audited model: there are many")
    parser.add_argument("--requests", nargs="+", default=["class", "samples"])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--images", type=int, help="keep so many training and test images only: a trial of the script")
    arguments = parser.parse_args()
    data = famr.open_data(f"parquet:{arguments.data}", label_column="label")
    training = TRAINING
    if arguments.images is not None:
        data, training = shortened(data, arguments.images), replace(TRAINING, epochs=1, batch_size=16)
    start = vit_tiny(arguments.weights, data.labels)
    facts = {
        "benchmark": "audit-cifar100-vit_tiny",
        "data": "CIFAR-100, official split, resized to 224 px",
        "model": "timm:vit_tiny_patch16_224, ImageNet weights, fine-tuned",
        "training": asdict(training),
        "class_seed": CLASS_SEED,
        "shadows": arguments.shadows,
        "shadow_epochs": arguments.shadow_epochs,
        "references": arguments.references,
    }
    results = Results(arguments.output, facts)
    models: Path = arguments.models or arguments.output.parent / "models"
    (name,) = drawn_classes(data.labels, 1, CLASS_SEED)
    if arguments.images is not None:
        name = data.labels[int(data.train.targets.mode().values)]
    draws = torch.Generator().manual_seed(CLASS_SEED)
    some = torch.randperm(len(data.train), generator=draws)[: len(data.train) // SAMPLE_SHARE].sort().values
    requests = {"class": famr.Request(classes=[name]), "samples": famr.Request(samples=some.tolist())}
    original = train_original(start, data, training, 0, results, models)
    shorter = training
    if arguments.images is None:
        shorter = replace(
            training, epochs=arguments.shadow_epochs, compile=None if pick_device().type == "cpu" else True
        )
    shadows = Shadows(start, data, name, some, shorter, arguments.shadows, models)
    for kind in arguments.requests:
        if all(results.has(kind=kind, method=method) for method in arguments.methods):
            continue
        request = requests[kind]
        splits = famr.split(data, request)
        assert splits.retain is not None
        references = [
            retrained(start, splits.retain, training, seed, models / f"retrained-{kind}-{seed}")
            for seed in range(arguments.references)
        ]
        for method in arguments.methods:
            if not results.has(kind=kind, method=method):
                cell = one_audit(original, references, splits, shadows.populations(kind, method), method)
                results.add({"kind": kind, "request": request.describe(), "method": method, **cell})


def one_audit(
    original: famr.Classifier, references: Sequence[famr.Classifier], splits: Splits, shadows: Populations, method: str
) -> dict[str, Any]:
    """Forget and audit; the gates, what is stated, what each part cost, and what the figures are drawn from."""
    begin = time.perf_counter()
    result = famr.forget(original, splits, METHODS[method], seed=0, track_retain=False)
    forgotten = time.perf_counter()
    found = audit(result.model, splits, original=original, retrained=references, shadows=shadows)
    seconds = {"forgetting": forgotten - begin, "audit": time.perf_counter() - forgotten, **found.costs}
    for each in found.checks:
        values = {model: None if f.value is None else round(f.value, 4) for model, f in each.figures.items()}
        log(f"{method}, {each.name}: {values}, allowed {each.allowed:.3f}, {dict(each.verdicts)}")
    log(f"{method}: {found.verdicts}, { ({part: round(value, 1) for part, value in seconds.items()}) }")
    pairs = {"unlearned": shadows.unlearned, "original": shadows.trained}
    curves = {
        model: curve_of(ours, shadows.retrained, shadows.targets) for model, ours in pairs.items() if ours is not None
    }
    place = pick_device("auto")
    said = {"original": original, "unlearned": result.model, "retrained": references[0]}
    unsure = {model: histogram(entropy(answers(each, splits.forget, place).logits)) for model, each in said.items()}
    return {"audit": found.to_json(), "seconds": seconds, "roc": curves, "entropy": unsure}


def curve_of(ours: Tensor, theirs: Tensor, targets: Tensor) -> dict[str, list[float]]:
    """The ROC of U-LiRA at places that are even on a log scale."""
    scored = u_lira_scored(ours, theirs, targets)
    kept = scored.seen | scored.unseen
    fpr, tpr = Curve(scored.scores[kept], scored.seen[kept]).rates(torch.ones(int(kept.sum()), dtype=torch.double))
    at = torch.logspace(-4, 0, POINTS, dtype=torch.double)
    place = torch.searchsorted(fpr, at, right=True).sub(1).clamp(min=0)
    return {"fpr": at.tolist(), "tpr": tpr[place].tolist()}


def histogram(values: Tensor) -> dict[str, list[float]]:
    """Shares of images by entropy, in nats."""
    counts, edges = torch.histogram(values.double().cpu(), bins=BINS, range=(0.0, 4.8))
    return {"edges": edges.tolist(), "share": (counts / len(values)).tolist()}


class Shadows:
    """Shadow models by their answers, each trained once and kept as answers alone."""

    def __init__(
        self,
        start: Start,
        data: Data,
        name: str,
        samples: Tensor,
        training: famr.Training,
        count: int,
        models: Path,
    ) -> None:
        self.start, self.data, self.training, self.models = start, data, training, models
        self.samples, self.target, self.name = samples, data.labels.index(name), name
        generator = torch.Generator().manual_seed(CLASS_SEED + 1)
        ranks = torch.rand(count, len(samples), generator=generator).argsort(dim=0)
        self.has_sample = ranks < count // 2  # (shadows, samples): each sample is in exactly half of them
        self.has_class = torch.arange(count) % 2 == 0
        self.forget = {
            "class": data.train.where(data.train.targets == self.target),
            "samples": data.train.take(samples),
        }

    def populations(self, kind: str, method: str) -> Populations:
        """Every shadow's answers to the forget set, sorted into those that saw an image and those that did not."""
        count = len(self.has_class)
        found = [self.answers_of(place, method) for place in range(count)]
        saw = self.has_sample if kind == "samples" else self.has_class[:, None].expand(count, len(self.forget["class"]))
        order = saw.to(torch.int8).argsort(dim=0, descending=True, stable=True)  # who saw each image, then who did not
        inside, outside = order[: count // 2], order[count // 2 :]

        def by(which: str, models: Tensor) -> Tensor:
            stacked = torch.stack([each[f"{kind}.{which}"] for each in found])  # (shadows, images, classes)
            return stacked.gather(0, models[:, :, None].expand(*models.shape, stacked.shape[-1]))

        targets = self.forget[kind].targets
        return Populations(targets, by(method, inside), by("trained", outside), by("trained", inside))

    def answers_of(self, place: int, method: str) -> dict[str, Tensor]:
        """One shadow's answers before and after it unlearns; trained where it is not kept."""
        file = self.models / f"shadow-{place}.safetensors"
        kept = load_file(str(file)) if file.is_file() else {}
        if f"class.{method}" in kept:
            return kept
        train, device = self.data.train, pick_device("auto")
        seen = torch.ones(len(train), dtype=torch.bool)
        seen[self.samples[~self.has_sample[place]]] = False
        if not self.has_class[place]:
            seen &= train.targets != self.target
        model = retrained(self.start, train.where(seen), self.training, 100 + place, self.models / f"shadow-{place}")
        mine = replace(self.data, train=train.where(seen))
        names = set(mine.train.ids)
        inside = [id_ for id_ in self.forget["samples"].ids if id_ in names]
        requests = {"class": famr.Request(classes=[self.name]), "samples": famr.Request(samples=inside)}
        for kind, images in self.forget.items():
            kept[f"{kind}.trained"] = answers(model, images, device).logits.contiguous()
            kept[f"{kind}.{method}"] = kept[f"{kind}.trained"].clone()
            if kind == "samples" or self.has_class[place]:
                splits = famr.split(mine, requests[kind])
                result = famr.forget(model, splits, METHODS[method], seed=place, track_retain=False)
                kept[f"{kind}.{method}"] = answers(result.model, images, device).logits.contiguous()
        file.parent.mkdir(parents=True, exist_ok=True)
        save_file(kept, str(file))
        log(f"shadow {place}, {method}: done")
        return kept


def retrained(start: Start, images: Images, training: famr.Training, seed: int, folder: Path) -> famr.Classifier:
    """A model trained on these images; from its folder, where it was trained before."""
    if not folder.is_dir():
        trained = famr.fit(start(seed), images, training, seed=seed)
        trained.save(folder)
        log(f"{folder.name}: {trained.seconds:.1f} s")
    return famr.load_model(str(folder))


def shortened(data: Data, count: int) -> Data:
    """A few images of each set."""
    assert data.test is not None
    draws = torch.Generator().manual_seed(0)
    parts = [images.take(torch.randperm(len(images), generator=draws)[:count]) for images in (data.train, data.test)]
    return replace(data, train=parts[0], test=parts[1])


if __name__ == "__main__":
    main()
