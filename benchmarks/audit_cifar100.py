"""The audit on CIFAR-100 with ViT-Ti: original, retrained, the paper's preset and the default; a class and samples.

    python -m benchmarks.audit_cifar100 --data DIR --weights FILE \
        --output benchmarks/results/audit-cifar100-vit_tiny.json

References are retrained without the whole request, one a seed. U-LiRA takes 16 shadow models: each is trained without a
random half of the forgotten samples, and every other one without the class, so that each image and the class are in
half of them. Each shadow then unlearns what it was trained on. The attacker knows everything but the membership.

A shadow was trained on other images and may lose more than the budget when it unlearns: where the method refuses, it
may lose `WIDER_BUDGET`, and the cell counts such shadows. A failed cell is kept with its reason; a run that was stopped
resumes with the shadow at which it stopped. Shadows are kept by their predictions alone, in half precision, a few
megabytes each, and can be copied to another machine. With `--prepare`, models are trained and no cell is run: all that
are missing, or those that are named (`original`, `shadow-3`, `retrained-class-0`), so that several processes can share
a GPU. The cells are run by one process alone, as they are timed.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from sklearn.metrics import roc_curve
from torch import Tensor

import famr
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
from famr.audit.audit import audit
from famr.audit.lira import u_lira_scores
from famr.audit.shadow_logits import FEWEST_MODELS, ShadowLogits
from famr.bench.tasks import drawn_classes
from famr.data import Data, Images
from famr.data.splits import Splits
from famr.engine.devices import pick_device
from famr.engine.inference import predict
from famr.errors import GateError
from famr.metrics.forgetting import entropy

METHODS = {
    "default": famr.FAMR(),
    "paper": replace(famr.FAMR.paper(), precision=None),
    "all layers": replace(famr.FAMR(), edited_share=1.0),
}
"""The paper's preset in the precision of the device, as it is run many times; the default with all layers edited."""
WIDER_BUDGET = 0.05
"""The budget of a shadow that the method refuses within its own."""
POINTS = 60
"""Points of a ROC curve that are kept for the figure."""
BINS = 24
TRIAL_CLASSES = 4
TRIAL_NETWORK = {"img_size": 32, "patch_size": 8}

Unlearning = tuple[str, str]
"""A kind of request, and a method."""
MONITOR = famr.Monitor(track_retain=False)


def main() -> None:
    parser = parser_for(__doc__, "CIFAR-100")
    parser.add_argument("--references", type=int, default=2, help="retrained models a request")
    parser.add_argument("--shadows", type=int, default=16)
    parser.add_argument("--shadow-epochs", type=int, default=CIFAR100_TRAINING.epochs, help="as of the audited model")
    parser.add_argument("--requests", nargs="+", default=["class", "samples"], choices=["class", "samples"])
    parser.add_argument("--methods", nargs="+", default=["default", "paper"], choices=list(METHODS))
    parser.add_argument("--prepare", nargs="*", metavar="MODEL", help="train these models, or all, and run no cell")
    parser.add_argument("--images", type=int, help="a trial: so many images of four classes, and a tiny network")
    arguments = parser.parse_args()
    data = open_parquet(arguments.data)
    training, start = CIFAR100_TRAINING, vit_tiny(arguments.weights, data.labels)
    (name,) = drawn_classes(data.labels, 1, CLASS_SEED)
    facts = cifar100_facts("audit-cifar100-vit_tiny", class_seed=CLASS_SEED)
    shorter = replace(training, epochs=arguments.shadow_epochs)
    if arguments.images is not None:
        data = shortened(data, name, arguments.images)
        training = shorter = replace(training, epochs=15, batch_size=32, learning_rate=2e-3)
        start = small_vit(data.labels, **TRIAL_NETWORK)
        facts |= {"data": f"a trial with {arguments.images} images", "model": "a ViT of two blocks, at random"}
    facts |= {
        "training": asdict(training),
        "shadows": arguments.shadows,
        "shadow_epochs": shorter.epochs,
        "wider_budget": WIDER_BUDGET,
        "references": arguments.references,
    }
    results = Results(arguments.output, facts)
    models: Path = arguments.models or arguments.output.parent / "models"
    samples = drawn_samples(data)
    requests = {"class": famr.Request(classes=[name]), "samples": famr.Request(samples=samples.tolist())}
    shadows = ShadowModels(start, data, name, samples, shorter, arguments.shadows, models)
    missing = {
        kind: [method for method in arguments.methods if not results.has(kind=kind, method=method)]
        for kind in arguments.requests
    }
    unlearnings = [(kind, method) for kind in missing for method in missing[kind]]
    splits = {kind: famr.split(data, requests[kind]) for kind in missing if missing[kind]}

    def reference(kind: str, seed: int) -> famr.Classifier:
        retain = splits[kind].retain
        assert retain is not None
        return trained_model(start, retain, training, seed, models / f"retrained-{kind}-{seed}")

    if arguments.prepare is not None:
        work: dict[str, Callable[[], object]] = {
            "original": lambda: train_original(start, data, training, 0, results, models),
            **{f"shadow-{n}": partial(shadows.prepare, unlearnings, [n]) for n in range(arguments.shadows)},
            **{
                f"retrained-{kind}-{seed}": partial(reference, kind, seed)
                for kind in splits
                for seed in range(arguments.references)
            },
        }
        if unknown := sorted(set(arguments.prepare) - work.keys()):
            parser.error(f"no model is called {', '.join(unknown)}; there are {', '.join(work)}")
        for model in arguments.prepare or work:
            work[model]()
        return
    original = train_original(start, data, training, 0, results, models)
    shadows.prepare(unlearnings)
    for kind in splits:
        references = [reference(kind, seed) for seed in range(arguments.references)]
        for method in missing[kind]:
            cell = cell_or_error(original, references, splits[kind], shadows, kind, method)
            results.add({"kind": kind, "request": requests[kind].describe(), "method": method, **cell})


def cell_or_error(
    original: famr.Classifier,
    references: Sequence[famr.Classifier],
    splits: Splits,
    shadows: ShadowModels,
    kind: str,
    method: str,
) -> dict[str, Any]:
    """The audit, or the reason why there is none: a failure must not cost the hours of other cells."""
    try:
        logits, wider = shadows.logits(kind, method)
        cell = audit_cell(original, references, splits, logits, method)
    except Exception as error:
        log(f"{kind}, {method}: failed\n{traceback.format_exc()}")
        return {"error": f"{type(error).__name__}: {error}"}
    return {"shadows_with_wider_budget": wider, **cell}


def audit_cell(
    original: famr.Classifier, references: Sequence[famr.Classifier], splits: Splits, shadows: ShadowLogits, method: str
) -> dict[str, Any]:
    """Forget and audit; the gates, the cost of each part, and the data of the figures."""
    start = time.perf_counter()
    result = famr.forget(original, splits, METHODS[method], seed=0, monitor=MONITOR)
    unlearned_at = time.perf_counter()
    report = audit(result.model, splits, original=original, retrained=references, shadows=shadows)
    seconds = {"forgetting": unlearned_at - start, "audit": time.perf_counter() - unlearned_at, **report.costs}
    for check in report.checks:
        values = {model: None if f.value is None else round(f.value, 4) for model, f in check.figures.items()}
        log(f"{method}, {check.name}: {values}, allowed {check.allowed:.3f}, {dict(check.verdicts)}")
    log(f"{method}: {report.verdicts}, { ({part: round(value, 1) for part, value in seconds.items()}) }")
    with_data = {"unlearned": shadows.unlearned, "original": shadows.trained}
    curves = {
        model: roc_points(logits, shadows.retrained, shadows.targets)
        for model, logits in with_data.items()
        if logits is not None and min(len(logits), len(shadows.retrained)) >= FEWEST_MODELS
    }
    device = pick_device("auto")
    models = {"original": original, "unlearned": result.model, "retrained": references[0]}
    entropies = {
        name: histogram(entropy(predict(model, splits.forget, device).logits)) for name, model in models.items()
    }
    return {"audit": report.to_json(), "seconds": seconds, "roc": curves, "entropy": entropies}


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


class ShadowModels:
    """Shadow models, each trained once and kept by its logits on the forget sets."""

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
        models.mkdir(parents=True, exist_ok=True)
        self.forget = {
            "class": data.train.where(data.train.targets == self.target),
            "samples": data.train.take(samples),
        }

    def logits(self, kind: str, method: str) -> tuple[ShadowLogits, int]:
        """Logits of all shadows on the forget set, by membership; and the number that needed the wider budget."""
        count = len(self.has_class)
        shadows = [self.logits_of(number, kind, method) for number in range(count)]
        is_member = (
            self.has_sample if kind == "samples" else self.has_class[:, None].expand(count, len(self.forget["class"]))
        )
        order = is_member.to(torch.int8).argsort(dim=0, descending=True, stable=True)  # members of each image first
        members, non_members = order[: count // 2], order[count // 2 :]

        def gather(which: str, models: Tensor) -> Tensor:
            stacked = torch.stack([shadow[f"{kind}.{which}"] for shadow in shadows])  # (shadows, images, classes)
            return stacked.gather(0, models[:, :, None].expand(*models.shape, stacked.shape[-1]))

        wider = sum(f"{kind}.{method}.budget" in shadow for shadow in shadows)
        parts = gather(method, members), gather("trained", non_members), gather("trained", members)
        return ShadowLogits(self.forget[kind].targets, *parts), wider

    def prepare(self, unlearnings: Sequence[Unlearning], numbers: Sequence[int] | None = None) -> None:
        """Train each shadow once and run its missing unlearnings; one that fails is left to its cell."""
        for number in range(len(self.has_class)) if numbers is None else numbers:
            stored = self._load(number)
            if missing := [each for each in unlearnings if ".".join(each) not in stored]:
                self._run(number, missing, stored, skip_failures=True)

    def logits_of(self, number: int, kind: str, method: str) -> dict[str, Tensor]:
        """One shadow's logits before and after it unlearns; from its file, or computed now."""
        stored = self._load(number)
        if f"{kind}.{method}" in stored:
            return stored
        return self._run(number, [(kind, method)], stored, skip_failures=False)

    def _load(self, number: int) -> dict[str, Tensor]:
        file = self._file(number)
        return {name: each.float() for name, each in load_file(str(file)).items()} if file.is_file() else {}

    def _file(self, number: int) -> Path:
        return self.models / f"shadow-{number}.safetensors"

    def _run(
        self, number: int, unlearnings: Sequence[Unlearning], stored: dict[str, Tensor], *, skip_failures: bool
    ) -> dict[str, Tensor]:
        """Train a shadow, predict, unlearn, predict again; all logits are stored."""
        train, device = self.data.train, pick_device("auto")
        is_member = torch.ones(len(train), dtype=torch.bool)
        is_member[self.samples[~self.has_sample[number]]] = False
        if not self.has_class[number]:
            is_member &= train.targets != self.target
        own_data = replace(self.data, train=train.where(is_member))
        folder = self.models / f"shadow-{number}"
        model = trained_model(self.start, own_data.train, self.training, 100 + number, folder)
        for kind, images in self.forget.items():
            if f"{kind}.trained" not in stored:
                stored[f"{kind}.trained"] = predict(model, images, device).logits
        own_ids = set(own_data.train.ids)
        own_samples = [id_ for id_ in self.forget["samples"].ids if id_ in own_ids]
        for kind, method in unlearnings:
            if kind == "class" and not self.has_class[number]:  # there is nothing to unlearn
                stored[f"{kind}.{method}"] = stored[f"{kind}.trained"].clone()
                continue
            request = famr.Request(classes=[self.name]) if kind == "class" else famr.Request(samples=own_samples)
            try:
                unlearned, budget = unlearn_shadow(model, famr.split(own_data, request), METHODS[method], number)
            except famr.FamrError as error:
                if not skip_failures:
                    raise
                log(f"shadow {number}, {kind}, {method}: {error.what}")
                continue
            stored[f"{kind}.{method}"] = predict(unlearned, self.forget[kind], device).logits
            if budget > METHODS[method].budget:
                stored[f"{kind}.{method}.budget"] = torch.tensor(budget)
        partial_file = self._file(number).with_suffix(".partial")
        save_file({name: each.half().contiguous() for name, each in stored.items()}, str(partial_file))
        partial_file.replace(self._file(number))
        log(f"shadow {number}: {', '.join('.'.join(each) for each in unlearnings)} done")
        return self._load(number)


def unlearn_shadow(
    model: famr.Classifier, splits: Splits, method: famr.FAMR, seed: int
) -> tuple[famr.Classifier, float]:
    """The shadow after it unlearned, and the budget within which it did."""
    try:
        return famr.forget(model, splits, method, seed=seed, monitor=MONITOR).model, method.budget
    except GateError as refused:
        if method.strength != "auto":  # no strength is searched, so no budget helps
            raise
        log(f"a budget of {WIDER_BUDGET:g} instead: {refused.what}")
        wider = replace(method, budget=WIDER_BUDGET)
        return famr.forget(model, splits, wider, seed=seed, monitor=MONITOR).model, WIDER_BUDGET


def trained_model(start: Start, images: Images, training: famr.Training, seed: int, folder: Path) -> famr.Classifier:
    """A model trained on these images; from its folder, where it was trained before."""
    if not folder.is_dir():
        trained = famr.fit(start(seed), images, training, seed=seed)
        trained.save(folder)
        log(f"{folder.name}: {trained.seconds:.1f} s")
    return famr.load_model(str(folder))


def shortened(data: Data, name: str, count: int) -> Data:
    """A few images of a few classes, one of them the named one."""
    assert data.test is not None
    first = data.labels.index(name)
    classes = torch.tensor([(first + step) % len(data.labels) for step in range(TRIAL_CLASSES)])
    draws = torch.Generator().manual_seed(0)
    parts = []
    for images in (data.train, data.test):
        some = images.where(torch.isin(images.targets, classes))
        parts.append(some.take(torch.randperm(len(some), generator=draws)[:count]))
    return replace(data, train=parts[0], test=parts[1])


if __name__ == "__main__":
    main()
