"""The paper's five metrics of a model on the sets of a request, and the gaps to a retrained model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from famr.data import Images
from famr.data.images import UNKNOWN
from famr.data.loaders import Batch, looks
from famr.data.splits import Splits
from famr.engine.devices import Precision, autocast, quick_products
from famr.engine.distributed import ALONE, Ranks
from famr.engine.oom import in_halves
from famr.errors import CheckpointError, DataError
from famr.losses.objective import at_least_float32
from famr.metrics.forgetting import correct, cross_entropy, entropy, kl_divergence
from famr.metrics.retraining import gap, js_divergence
from famr.metrics.tables import COLUMNS
from famr.models import Classifier
from famr.models.classifier import evaluating
from famr.models.labels import require_same_labels

if TYPE_CHECKING:
    from famr.unlearn.forget import Unlearned


@dataclass(frozen=True)
class Answers:
    """A model's logits on a set of images, with the labels."""

    logits: Tensor  # (images, classes)
    targets: Tensor  # (images,)

    @property
    def labelled(self) -> bool:
        """Whether every image has a class."""
        return bool((self.targets != UNKNOWN).all())


@dataclass(frozen=True)
class SplitAnswers:
    """A model's answers on the sets of a request that are measured."""

    forget: Answers
    test: Answers | None
    forget_test: Answers | None


@dataclass(frozen=True)
class ModelScores:
    """One model's five metrics as fractions and nats; None where the images for it were not given."""

    retain_accuracy: float | None
    forget_accuracy: float | None
    forget_test_accuracy: float | None
    forget_cross_entropy: float | None
    forget_entropy: float
    forget_kl: float | None
    counts: dict[str, int | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Scores:
    """The metrics of the original, the unlearned and the retrained model, and |unlearned − retrained|."""

    original: ModelScores | None
    unlearned: ModelScores
    retrained: ModelScores | None
    gap: dict[str, float | None] | None
    not_available: dict[str, str]
    """Why a figure is missing, by its name."""
    earlier: dict[str, float | None] = field(default_factory=dict)
    """The unlearned model's accuracy on what it was made to forget before; None where those images are gone."""

    def to_json(self) -> dict[str, Any]:
        """As it is stored in metrics.json."""
        return asdict(self)


def evaluate(
    result: Unlearned,
    splits: Splits,
    retrained: Classifier | None = None,
    *,
    device: str | None = None,
    precision: Precision = "fp32",
) -> Scores:
    """Measure an unlearned model beside its original and, if there is one, beside a retrained model."""
    return compare(result.original, result.model, retrained, splits, device=device, precision=precision)


def compare(
    original: Classifier | None,
    unlearned: Classifier,
    retrained: Classifier | None,
    splits: Splits,
    *,
    device: str | None = None,
    precision: Precision = "fp32",
    ranks: Ranks = ALONE,
) -> Scores:
    """The five metrics of up to three models on the same images."""
    for name, model in (("original", original), ("retrained", retrained)):
        if model is not None and model.labels != unlearned.labels:
            raise CheckpointError(
                f"The {name} model names other classes than the unlearned one.",
                where=f"{model.spec}: {len(model.labels or ())} classes",
                fix="Compare models that were trained on the same classes.",
            )
    require_same_labels(unlearned, splits)
    place = ranks.place(device or "auto")
    scores = compare_answers(
        None if original is None else answers_to(splits, original, place, precision, ranks),
        answers_to(splits, unlearned, place, precision, ranks),
        None if retrained is None else answers_to(splits, retrained, place, precision, ranks),
        splits,
    )
    earlier = {
        run.request.describe(): None if images is None else accuracy_on(unlearned, images, place, ranks)
        for run, images in zip(splits.earlier, splits.earlier_images, strict=True)
    }
    return replace(scores, earlier=earlier)


def compare_answers(
    original: SplitAnswers | None, unlearned: SplitAnswers, retrained: SplitAnswers | None, splits: Splits
) -> Scores:
    """The five metrics from what up to three models said; |unlearned − retrained| of each, and the JS between them."""
    said = {"original": original, "unlearned": unlearned, "retrained": retrained}
    reference = None if original is None else original.forget
    scores = {
        name: score(found.forget, reference, found.test, found.forget_test)
        for name, found in said.items()
        if found is not None
    }
    gaps = None
    if retrained is not None:
        pairs = {name: gap(*(getattr(scores[m], name) for m in ("unlearned", "retrained"))) for name in COLUMNS}
        js = js_divergence(unlearned.forget.logits, retrained.forget.logits).mean()
        gaps = {**pairs, "forget_js_divergence": float(js)}
    return Scores(scores.get("original"), scores["unlearned"], scores.get("retrained"), gaps, _reasons(splits, scores))


def answers_to(
    splits: Splits, model: Classifier, device: torch.device, precision: Precision = "fp32", ranks: Ranks = ALONE
) -> SplitAnswers:
    """What a model says about the forget set and the held-out sets of a request."""

    def said(images: Images | None) -> Answers | None:
        return None if images is None else answers(model, images, device, precision, ranks)

    return SplitAnswers(
        forget=answers(model, splits.forget, device, precision, ranks),
        test=said(splits.test),
        forget_test=said(splits.forget_test),
    )


def score(forget: Answers, original: Answers | None, test: Answers | None, forget_test: Answers | None) -> ModelScores:
    """The five metrics from a model's answers; `original` holds θ₀'s answers on the same forget images."""
    known = forget.labelled
    return ModelScores(
        retain_accuracy=_accuracy(test),
        forget_accuracy=_accuracy(forget),
        forget_test_accuracy=_accuracy(forget_test),
        forget_cross_entropy=float(cross_entropy(forget.logits, forget.targets).mean()) if known else None,
        forget_entropy=float(entropy(forget.logits).mean()),
        forget_kl=None if original is None else float(kl_divergence(original.logits, forget.logits).mean()),
        counts={
            "retain": None if test is None else len(test.targets),
            "forget": len(forget.targets),
            "forget_test": None if forget_test is None else len(forget_test.targets),
        },
    )


def _accuracy(found: Answers | None) -> float | None:
    return float(correct(found.logits, found.targets).mean()) if found is not None and found.labelled else None


def accuracy_on(model: Classifier, images: Images, device: torch.device, ranks: Ranks = ALONE) -> float | None:
    """Accuracy on stored images; None where they have no labels."""
    return _accuracy(answers(model, images, device, ranks=ranks))


def answers(
    model: Classifier, images: Images, device: torch.device, precision: Precision = "fp32", ranks: Ranks = ALONE
) -> Answers:
    """What a model says about stored images, in their order."""
    batches = looks(images, model.prepared_by(), device, ranks)
    if ranks.sharded:
        from famr.engine.fsdp import spread_copy

        return collect(spread_copy(model, device, ranks), batches(None), device, precision, ranks)
    with placed(model.module, device):
        return collect(model, batches(None), device, precision, ranks)


@torch.no_grad()
def collect(
    model: Classifier,
    batches: Iterable[Batch],
    device: torch.device,
    precision: Precision = "fp32",
    ranks: Ranks = ALONE,
) -> Answers:
    """Run a model in evaluation mode over batches that are already on its device; every rank gets all answers."""
    logits, targets = [], []
    with evaluating(model.module), quick_products():
        for images, labels, _positions in batches:
            with autocast(device, precision):
                said = in_halves(lambda some: at_least_float32(model.logits(some)), images)
            logits.append(ranks.gather(said, len(labels)))
            targets.append(labels)
    return known_to(model, Answers(torch.cat(logits).cpu(), torch.cat(targets).cpu()))


def known_to(model: Classifier, found: Answers) -> Answers:
    """Answers to images of classes that the model has; an error where it has not."""
    if int(found.targets.max()) >= found.logits.shape[-1]:
        raise DataError(
            f"The data has class index {int(found.targets.max())}, the head only {found.logits.shape[-1]} outputs.",
            where=model.spec,
            fix="Use the data the checkpoint was trained on.",
        )
    return found


@contextmanager
def placed(module: nn.Module, device: torch.device) -> Iterator[None]:
    """Have a network on a device for a while, and bring it back."""
    home = next(module.parameters()).device
    module.to(device)
    try:
        yield
    finally:
        module.to(home)


def _reasons(splits: Splits, scores: dict[str, ModelScores]) -> dict[str, str]:
    """One sentence for each figure that could not be measured."""
    reasons = {}
    if splits.test is None or not splits.test.labelled:
        reasons["retain_accuracy"] = "no labelled held-out images of retained classes were given"
    if splits.forget_test is None:
        asked_for_samples = splits.request.kind == "samples"
        reasons["forget_test_accuracy"] = (
            "forgotten samples have no held-out counterpart"
            if asked_for_samples
            else "no held-out images of what was forgotten were given"
        )
    if not splits.forget.labelled:
        reasons["forget_accuracy"] = reasons["forget_cross_entropy"] = "the forget images have no labels"
    if "original" not in scores:
        reasons["original"] = reasons["forget_kl"] = "the original checkpoint was not given"
    if "retrained" not in scores:
        reasons["retrained"] = reasons["gap"] = "no retrained checkpoint was given"
    return reasons
