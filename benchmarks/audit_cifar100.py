"""The audit on CIFAR-100 with ViT-Ti: original, retrained, the paper's preset and the default; a class and samples.

    python -m benchmarks.audit_cifar100 --data DIR --weights FILE \
        --output benchmarks/results/audit-cifar100-vit_tiny.json

References are retrained without the whole request, one a seed. For U-LiRA come 16 shadow models: each is trained
without a random half of the forgotten samples, and every other one without the class, so that each image and the class
are in half of them. Each shadow then unlearns what it saw. The attacker is told everything but that.

A shadow has seen other images, and may lose more than the budget when it unlearns: where the method refuses it may
lose `WIDER`, and the cell says of how many shadows that holds. A cell that fails is kept with its reason, and the run
goes on; a run that is stopped and started again goes on with the shadow at which it was stopped. Shadows are kept by
their answers alone, in half precision, a few megabytes each, and can be carried to another machine. With `--prepare`
models are trained and no cell is made: all that are missing, or those that are named (`original`, `shadow-3`,
`retrained-class-0`), so that several processes can share a GPU which one of them leaves idle half of the time. The
cells are made by one process alone, as they are timed.
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
from benchmarks.cells import Results, drawn_classes, log, train_original, usual_arguments, vit_tiny
from benchmarks.paper_cifar100 import CLASS_SEED, TRAINING
from famr.audit.audit import audit
from famr.audit.lira import u_lira_scores
from famr.audit.shadow_logits import FEWEST_MODELS, ShadowLogits
from famr.data import Data, Images
from famr.data.splits import Splits
from famr.engine.devices import pick_device
from famr.engine.inference import predict
from famr.errors import GateError
from famr.metrics.forgetting import entropy

SAMPLE_SHARE = 10
METHODS = {
    "default": famr.FAMR(),
    "paper": replace(famr.FAMR.paper(), precision=None),
    "all layers": replace(famr.FAMR(), edited_share=1.0),
}
"""The paper's preset in the precision of the device, as it is run many times; and the default let into every layer."""
WIDER = 0.05
"""The budget of a shadow that the method refuses within its own."""
POINTS = 60
"""Places of a ROC curve that are kept for the figure."""
BINS = 24
TRIAL_CLASSES = 4
TRIAL_NETWORK = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 2}

Start = Callable[[int], famr.Classifier]
Wanted = tuple[str, str]
"""A kind of request, and a method."""
UNWATCHED = famr.Monitor(track_retain=False)


def main() -> None:
    parser = usual_arguments(__doc__, "CIFAR-100")
    parser.add_argument("--references", type=int, default=2, help="retrained models a request")
    parser.add_argument("--shadows", type=int, default=16)
    parser.add_argument("--shadow-epochs", type=int, default=TRAINING.epochs, help="as of the audited model")
    parser.add_argument("--requests", nargs="+", default=["class", "samples"], choices=["class", "samples"])
    parser.add_argument("--methods", nargs="+", default=["default", "paper"], choices=list(METHODS))
    parser.add_argument("--prepare", nargs="*", metavar="MODEL", help="train these, or all, and make no cell")
    parser.add_argument("--images", type=int, help="a trial: so many images of four classes, and a tiny network")
    arguments = parser.parse_args()
    data = famr.open_data(f"parquet:{arguments.data}", label_column="label")
    training, network = TRAINING, "timm:vit_tiny_patch16_224, ImageNet weights, fine-tuned"
    start, trial = vit_tiny(arguments.weights, data.labels), arguments.images is not None
    (name,) = drawn_classes(data.labels, 1, CLASS_SEED)
    shorter = replace(training, epochs=arguments.shadow_epochs)
    if trial:
        data = shortened(data, name, arguments.images)
        training = shorter = replace(TRAINING, epochs=15, batch_size=32, learning_rate=2e-3)
        start, network = tiny(data.labels), "a ViT of two blocks, at random"
    facts = {
        "benchmark": "audit-cifar100-vit_tiny",
        "data": f"a trial with {arguments.images} images" if trial else "CIFAR-100, official split, resized to 224 px",
        "model": network,
        "training": asdict(training),
        "class_seed": CLASS_SEED,
        "shadows": arguments.shadows,
        "shadow_epochs": shorter.epochs,
        "wider_budget": WIDER,
        "references": arguments.references,
    }
    results = Results(arguments.output, facts)
    models: Path = arguments.models or arguments.output.parent / "models"
    draws = torch.Generator().manual_seed(CLASS_SEED)
    some = torch.randperm(len(data.train), generator=draws)[: len(data.train) // SAMPLE_SHARE].sort().values
    requests = {"class": famr.Request(classes=[name]), "samples": famr.Request(samples=some.tolist())}
    shadows = Shadows(start, data, name, some, shorter, arguments.shadows, models)
    missing = {
        kind: [method for method in arguments.methods if not results.has(kind=kind, method=method)]
        for kind in arguments.requests
    }
    wanted = [(kind, method) for kind in missing for method in missing[kind]]
    splits = {kind: famr.split(data, requests[kind]) for kind in missing if missing[kind]}

    def reference(kind: str, seed: int) -> famr.Classifier:
        retain = splits[kind].retain
        assert retain is not None
        return retrained(start, retain, training, seed, models / f"retrained-{kind}-{seed}")

    if arguments.prepare is not None:
        work: dict[str, Callable[[], object]] = {
            "original": lambda: train_original(start, data, training, 0, results, models),
            **{f"shadow-{place}": partial(shadows.prepare, wanted, [place]) for place in range(arguments.shadows)},
            **{
                f"retrained-{kind}-{seed}": partial(reference, kind, seed)
                for kind in splits
                for seed in range(arguments.references)
            },
        }
        if unknown := sorted(set(arguments.prepare) - work.keys()):
            parser.error(f"nothing to train is called {', '.join(unknown)}; there are {', '.join(work)}")
        for model in arguments.prepare or work:
            work[model]()
        return
    original = train_original(start, data, training, 0, results, models)
    shadows.prepare(wanted)
    for kind in splits:
        references = [reference(kind, seed) for seed in range(arguments.references)]
        for method in missing[kind]:
            cell = kept_cell(original, references, splits[kind], shadows, kind, method)
            results.add({"kind": kind, "request": requests[kind].describe(), "method": method, **cell})


def kept_cell(
    original: famr.Classifier,
    references: Sequence[famr.Classifier],
    splits: Splits,
    shadows: Shadows,
    kind: str,
    method: str,
) -> dict[str, Any]:
    """The audit, or why there is none: hours of other cells must not be lost with one."""
    try:
        populations, wider = shadows.populations(kind, method)
        found = one_audit(original, references, splits, populations, method)
    except Exception as error:
        log(f"{kind}, {method}: failed\n{traceback.format_exc()}")
        return {"error": f"{type(error).__name__}: {error}"}
    return {"shadows_with_wider_budget": wider, **found}


def one_audit(
    original: famr.Classifier, references: Sequence[famr.Classifier], splits: Splits, shadows: ShadowLogits, method: str
) -> dict[str, Any]:
    """Forget and audit; the gates, what is stated, what each part cost, and what the figures are drawn from."""
    begin = time.perf_counter()
    result = famr.forget(original, splits, METHODS[method], seed=0, monitor=UNWATCHED)
    forgotten = time.perf_counter()
    found = audit(result.model, splits, original=original, retrained=references, shadows=shadows)
    seconds = {"forgetting": forgotten - begin, "audit": time.perf_counter() - forgotten, **found.costs}
    for each in found.checks:
        values = {model: None if f.value is None else round(f.value, 4) for model, f in each.figures.items()}
        log(f"{method}, {each.name}: {values}, allowed {each.allowed:.3f}, {dict(each.verdicts)}")
    log(f"{method}: {found.verdicts}, { ({part: round(value, 1) for part, value in seconds.items()}) }")
    pairs = {"unlearned": shadows.unlearned, "original": shadows.trained}
    curves = {
        model: curve_of(ours, shadows.retrained, shadows.targets)
        for model, ours in pairs.items()
        if ours is not None and min(len(ours), len(shadows.retrained)) >= FEWEST_MODELS
    }
    place = pick_device("auto")
    said = {"original": original, "unlearned": result.model, "retrained": references[0]}
    unsure = {model: histogram(entropy(predict(each, splits.forget, place).logits)) for model, each in said.items()}
    return {"audit": found.to_json(), "seconds": seconds, "roc": curves, "entropy": unsure}


def curve_of(ours: Tensor, theirs: Tensor, targets: Tensor) -> dict[str, list[float]]:
    """The ROC of U-LiRA at places that are even on a log scale."""
    scored = u_lira_scores(ours, theirs, targets)
    kept = scored.seen | scored.unseen
    scores, seen = scored.scores[kept], scored.seen[kept]
    fpr, tpr = (torch.from_numpy(rate) for rate in roc_curve(seen.numpy(), scores.numpy(), drop_intermediate=False)[:2])
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
        models.mkdir(parents=True, exist_ok=True)
        self.forget = {
            "class": data.train.where(data.train.targets == self.target),
            "samples": data.train.take(samples),
        }

    def populations(self, kind: str, method: str) -> tuple[ShadowLogits, int]:
        """Every shadow's answers to the forget set, by who saw an image; and how many needed the wider budget."""
        count = len(self.has_class)
        found = [self.answers_of(place, kind, method) for place in range(count)]
        saw = self.has_sample if kind == "samples" else self.has_class[:, None].expand(count, len(self.forget["class"]))
        order = saw.to(torch.int8).argsort(dim=0, descending=True, stable=True)  # who saw each image, then who did not
        inside, outside = order[: count // 2], order[count // 2 :]

        def by(which: str, models: Tensor) -> Tensor:
            stacked = torch.stack([each[f"{kind}.{which}"] for each in found])  # (shadows, images, classes)
            return stacked.gather(0, models[:, :, None].expand(*models.shape, stacked.shape[-1]))

        targets = self.forget[kind].targets
        wider = sum(f"{kind}.{method}.budget" in each for each in found)
        return ShadowLogits(targets, by(method, inside), by("trained", outside), by("trained", inside)), wider

    def prepare(self, wanted: Sequence[Wanted], places: Sequence[int] | None = None) -> None:
        """Train each shadow once, let it unlearn in every wanted way; one that fails is left for its cell to tell."""
        for place in range(len(self.has_class)) if places is None else places:
            kept = self._kept(place)
            if missing := [each for each in wanted if ".".join(each) not in kept]:
                self._ask(place, missing, kept, passing=True)

    def answers_of(self, place: int, kind: str, method: str) -> dict[str, Tensor]:
        """One shadow's answers before and after it unlearns, kept on disk; trained where it is not kept."""
        kept = self._kept(place)
        return kept if f"{kind}.{method}" in kept else self._ask(place, [(kind, method)], kept, passing=False)

    def _kept(self, place: int) -> dict[str, Tensor]:
        file = self._file(place)
        return {name: each.float() for name, each in load_file(str(file)).items()} if file.is_file() else {}

    def _file(self, place: int) -> Path:
        return self.models / f"shadow-{place}.safetensors"

    def _ask(
        self, place: int, wanted: Sequence[Wanted], kept: dict[str, Tensor], *, passing: bool
    ) -> dict[str, Tensor]:
        """Train a shadow, ask it, let it unlearn in the wanted ways and ask it again; all of it is kept."""
        train, device = self.data.train, pick_device("auto")
        seen = torch.ones(len(train), dtype=torch.bool)
        seen[self.samples[~self.has_sample[place]]] = False
        if not self.has_class[place]:
            seen &= train.targets != self.target
        model = retrained(self.start, train.where(seen), self.training, 100 + place, self.models / f"shadow-{place}")
        for each, images in self.forget.items():
            if f"{each}.trained" not in kept:
                kept[f"{each}.trained"] = predict(model, images, device).logits
        mine = replace(self.data, train=train.where(seen))
        names = set(mine.train.ids)
        inside = [id_ for id_ in self.forget["samples"].ids if id_ in names]
        for kind, method in wanted:
            if kind == "class" and not self.has_class[place]:  # there is nothing to unlearn
                kept[f"{kind}.{method}"] = kept[f"{kind}.trained"].clone()
                continue
            request = famr.Request(classes=[self.name]) if kind == "class" else famr.Request(samples=inside)
            try:
                unlearned, budget = forgotten(model, famr.split(mine, request), METHODS[method], place)
            except famr.FamrError as error:
                if not passing:
                    raise
                log(f"shadow {place}, {kind}, {method}: {error.what}")
                continue
            kept[f"{kind}.{method}"] = predict(unlearned, self.forget[kind], device).logits
            if budget > METHODS[method].budget:
                kept[f"{kind}.{method}.budget"] = torch.tensor(budget)
        whole = self._file(place).with_suffix(".partial")
        save_file({name: each.half().contiguous() for name, each in kept.items()}, str(whole))
        whole.replace(self._file(place))
        log(f"shadow {place}: {', '.join('.'.join(each) for each in wanted)} done")
        return self._kept(place)


def forgotten(model: famr.Classifier, splits: Splits, method: famr.FAMR, seed: int) -> tuple[famr.Classifier, float]:
    """The shadow after it unlearned, and the budget within which it did."""
    try:
        return famr.forget(model, splits, method, seed=seed, monitor=UNWATCHED).model, method.budget
    except GateError as refused:
        if method.strength != "auto":  # no strength is sought, so no budget helps
            raise
        log(f"a budget of {WIDER:g} instead: {refused.what}")
        wider = replace(method, budget=WIDER)
        return famr.forget(model, splits, wider, seed=seed, monitor=UNWATCHED).model, WIDER


def retrained(start: Start, images: Images, training: famr.Training, seed: int, folder: Path) -> famr.Classifier:
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


def tiny(labels: tuple[str, ...]) -> Start:
    """A network that trains in seconds."""
    return lambda seed: famr.new_model(
        "timm:vit_tiny_patch16_224", labels, from_scratch=True, arguments=TRIAL_NETWORK, seed=seed
    )


if __name__ == "__main__":
    main()
