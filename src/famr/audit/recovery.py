"""Class recovery: can an attacker with a few labelled images still read the forgotten classes off features and head?

Every figure of an unlearned model is good where it equals that of a retrained one. A retrained network, too, has
features from which a class it never saw can be read: an accuracy above chance alone shows nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from famr.audit.cka import cka_to_models
from famr.audit.head_attacks import BiasTies, best_bias, bias_ties, with_head_of
from famr.audit.probes import (
    Classify,
    FewShot,
    few_shot_hits,
    neighbour_predictions,
    probe_predictions,
    prototype_head,
)
from famr.data import Images
from famr.data.loaders import order
from famr.data.splits import Splits, sample_per_class
from famr.engine.devices import pick_device
from famr.engine.features import PENULTIMATE, layer_features
from famr.engine.inference import predict
from famr.errors import RequestError
from famr.metrics.forgetting import correct
from famr.metrics.predictions import Predictions
from famr.models import Classifier
from famr.models.labels import require_same_labels
from famr.models.layers import head_of

FEW_SHOT = FewShot(shots=5, draws=10)
"""With hundreds of images of each class, probes of retrained features succeed as well."""
ATTACKS = ("as_it_is", "probe", "neighbours", "prototype", "best_bias", "original_head", "original_bias")
"""The model's own predictions, before any attack; then the attacks."""


@dataclass(frozen=True, eq=False)
class AttackHits:
    """How often each held-out image is put into its own class: 0 or 1, or a share over draws.

    Attributes:
        forget: Of the forgotten classes, (images,).
        retain: Of the retained classes, (images',); None where no such images were given.
    """

    forget: Tensor
    retain: Tensor | None

    @classmethod
    def of_predictions(cls, forget: Predictions, retain: Predictions | None) -> AttackHits:
        """Hits of a model's predictions.

        Args:
            forget: On held-out images of the forgotten classes.
            retain: On held-out images of the retained classes.
        """
        retain_hits = None if retain is None else correct(retain.logits, retain.targets)
        return cls(correct(forget.logits, forget.targets), retain_hits)

    @property
    def forget_accuracy(self) -> float:
        """Over the forgotten classes."""
        return float(self.forget.mean())

    @property
    def retain_accuracy(self) -> float | None:
        """Over the retained classes: what the attack costs them."""
        return None if self.retain is None else float(self.retain.mean())

    def to_json(self) -> dict[str, Any]:
        """Accuracies, and the numbers of images they are of."""
        counts = {"forget": len(self.forget), "retain": None if self.retain is None else len(self.retain)}
        return {"forget_accuracy": self.forget_accuracy, "retain_accuracy": self.retain_accuracy, "counts": counts}


@dataclass(frozen=True, eq=False)
class ClassRecovery:
    """Outcome of all attacks on one model.

    Attributes:
        hits: By the name of the attack, one of `ATTACKS`; without those that the available data does not allow.
        cka: By the other model (original, retrained), the set of images (forget, retain) and the layer.
        measured_on: Which forgotten images the attacks are evaluated on.
        ties: Of the attack by the best bias, on the same images; None where it was not run.
        not_available: Why an attack or a comparison is missing, by its name.
    """

    hits: dict[str, AttackHits]
    cka: dict[str, dict[str, dict[str, float]]]
    measured_on: str
    ties: BiasTies | None = None
    not_available: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As plain values; None for an attack that is missing."""
        return {
            **{name: self.hits[name].to_json() if name in self.hits else None for name in ATTACKS},
            "cka": self.cka,
            "measured_on": self.measured_on,
            "not_available": self.not_available,
        }


@dataclass(frozen=True, eq=False)
class _AttackData:
    """Labelled images that the attacker learns from (forgotten and retained ones), and images to evaluate it on."""

    learned: Images
    learned_retain: Images | None
    queries: Images
    queries_retain: Images | None
    measured_on: str

    @classmethod
    def draw(cls, splits: Splits, few_shot: FewShot) -> _AttackData:
        """The same images for every model, from the seed alone."""
        pool, seed = few_shot.pool, few_shot.seed
        retain = splits.retain if splits.retain is not None and splits.retain.labelled else None
        retain = None if retain is None else sample_per_class(retain, pool, seed)
        if splits.forget_test is not None:
            learned, queries, measured_on = splits.forget, splits.forget_test, "held-out forgotten images"
        else:
            if len(splits.forget) < 2:
                raise RequestError(
                    "The attacks learn from some forget images and are evaluated on others, and there is only one.",
                    where="forget set",
                    fix="Give more forget images, or held-out ones.",
                )
            first, second = order(len(splits.forget), seed).tensor_split([len(splits.forget) // 2])
            learned, queries = splits.forget.take(first), splits.forget.take(second)
            measured_on = "half of the forget set"
        return cls(sample_per_class(learned, pool, seed), retain, queries, splits.test, measured_on)

    def predictions(self, model: Classifier, device: torch.device) -> tuple[Predictions, Predictions | None]:
        """Of a model, on both sets of queries."""
        retain = None if self.queries_retain is None else predict(model, self.queries_retain, device)
        return predict(model, self.queries, device), retain


def recover_classes(
    model: Classifier,
    splits: Splits,
    *,
    original: Classifier | None = None,
    retrained: Classifier | None = None,
    layers: tuple[str, ...] | None = None,
    few_shot: FewShot = FEW_SHOT,
    device: str | None = None,
) -> ClassRecovery:
    """Run all attacks on one model; call it for the original and a retrained model as well.

    Probes learn from a few training images of each class, forgotten ones among them, and are evaluated on held-out
    images. Which images these are depends on the seed alone, so that models can be compared image by image.

    Args:
        model: The model under audit; it is not changed.
        splits: Of a request that forgets whole classes.
        original: The model before unlearning, for its head and for CKA.
        retrained: A model trained without the forget set, for CKA.
        layers: Names of layers for CKA; None: each block, and the penultimate features.
        few_shot: How many labelled images the attacker has.
        device: None: the best there is.

    Raises:
        RequestError: Where no whole class is forgotten, or there is a single forget image and no held-out one.
    """
    require_same_labels(model, splits)
    classes = tuple(sorted(set(splits.forget.targets.tolist()) & set(splits.forgotten_classes())))
    if not classes or not splits.forget.labelled:
        raise RequestError(
            "Class recovery needs whole forgotten classes, and there are none.",
            where=splits.request.describe(),
            fix="Use membership attacks for samples, and the style probe for styles.",
        )
    torch_device = pick_device(device or "auto")
    data = _AttackData.draw(splits, few_shot)
    given = {name: other for name, other in (("original", original), ("retrained", retrained)) if other is not None}
    sets = {"forget": data.queries} | ({} if splits.test is None else {"retain": splits.test})
    head_attacks, ties = _head_attacks(model, original, data, classes, torch_device)
    return ClassRecovery(
        hits={**_few_shot_attacks(model, data, classes, few_shot, torch_device), **head_attacks},
        cka=cka_to_models(model, given, sets, torch_device, layers),
        measured_on=data.measured_on,
        ties=ties,
        not_available=_reasons(data, original, retrained),
    )


def _few_shot_attacks(
    model: Classifier, data: _AttackData, classes: tuple[int, ...], few_shot: FewShot, device: torch.device
) -> dict[str, AttackHits]:
    """Linear probe, nearest neighbours and prototypes on penultimate features."""

    def features(images: Images) -> Tensor:
        return layer_features(model, images, device)[PENULTIMATE]

    query_sets = [images for images in (data.queries, data.queries_retain) if images is not None]
    queries = torch.cat([features(images) for images in query_sets])
    truth = torch.cat([images.targets for images in query_sets])

    def attack(classify: Classify, known: Tensor, labels: Tensor) -> AttackHits:
        hits = few_shot_hits(classify, known, labels, queries, truth, few_shot)
        forget, retain = hits.tensor_split([len(data.queries)])
        return AttackHits(forget, None if data.queries_retain is None else retain)

    head = head_of(model)
    weight, bias = head.weight.detach().cpu(), None if head.bias is None else head.bias.detach().cpu()

    def prototype_predictions(known: Tensor, labels: Tensor, queries: Tensor) -> Tensor:
        return F.linear(queries, *prototype_head(weight, bias, known, labels, classes)).argmax(dim=1)

    known, labels = features(data.learned), data.learned.targets
    hits = {"prototype": attack(prototype_predictions, known, labels)}
    if data.learned_retain is not None:
        known = torch.cat([known, features(data.learned_retain)])
        labels = torch.cat([labels, data.learned_retain.targets])
        hits["probe"] = attack(probe_predictions, known, labels)
        hits["neighbours"] = attack(neighbour_predictions, known, labels)
    return hits


def _head_attacks(
    model: Classifier,
    original: Classifier | None,
    data: _AttackData,
    classes: tuple[int, ...],
    device: torch.device,
) -> tuple[dict[str, AttackHits], BiasTies | None]:
    """The model's own predictions; those with the best bias, and with the original's head or bias; ties of the bias."""
    forget, retain = data.predictions(model, device)
    hits, ties = {"as_it_is": AttackHits.of_predictions(forget, retain)}, None
    if retain is not None:
        ties = bias_ties(forget.logits, forget.targets, retain.logits, retain.targets, classes)
        shifted = best_bias(ties)
        hits["best_bias"] = AttackHits(shifted.forget, shifted.retain)
    if original is not None:
        for name, bias_only in (("original_head", False), ("original_bias", True)):
            changed = with_head_of(model, original, bias_only=bias_only)
            hits[name] = AttackHits.of_predictions(*data.predictions(changed, device))
    return hits, ties


def _reasons(data: _AttackData, original: Classifier | None, retrained: Classifier | None) -> dict[str, str]:
    """One sentence for each figure that could not be measured."""
    reasons = {}
    if data.learned_retain is None:
        reasons["probe"] = reasons["neighbours"] = "no labelled retained images were given to learn from"
    if data.queries_retain is None:
        reasons["best_bias"] = "no held-out images of retained classes were given"
    if original is None:
        reasons["original_head"] = reasons["original_bias"] = "the original checkpoint was not given"
    for name, other in (("original", original), ("retrained", retrained)):
        if other is None:
            reasons[f"cka to {name}"] = f"the {name} checkpoint was not given"
    return reasons
