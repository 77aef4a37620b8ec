"""Does forgetting go deep? What an attacker with a few labelled images still reads off the features and the head.

Every figure of an unlearned model is good where it equals that of a retrained one. A retrained network, too, has
features from which a class it never saw can be read: an accuracy above chance alone shows nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from famr.audit.cka import cka_to_others
from famr.audit.head_check import best_bias, with_head_of
from famr.audit.probes import few_of_each, neighbour_answers, probe_answers, prototype_head
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

SHOTS = 5
"""Labelled images of each class that an attacker has. With hundreds, probes of retrained features succeed as well."""

DRAWS = 10
"""Times that these few images are drawn anew."""


@dataclass(frozen=True, eq=False)
class Recognised:
    """How often each held-out image was put into its own class: 0 or 1, or a share over the draws."""

    forget: Tensor
    retain: Tensor | None

    @property
    def forget_accuracy(self) -> float:
        """Over the forgotten classes."""
        return float(self.forget.mean())

    @property
    def retain_accuracy(self) -> float | None:
        """Over the others: what the attack costs them."""
        return None if self.retain is None else float(self.retain.mean())

    def to_json(self) -> dict[str, Any]:
        """Accuracies and the number of images they are of."""
        counts = {"forget": len(self.forget), "retain": None if self.retain is None else len(self.retain)}
        return {"forget_accuracy": self.forget_accuracy, "retain_accuracy": self.retain_accuracy, "counts": counts}


@dataclass(frozen=True, eq=False)
class Depth:
    """What is left of the forgotten classes in one model; None where what it takes was not given."""

    as_it_is: Recognised
    """The model's own answers, before any attack."""
    probe: Recognised | None
    neighbours: Recognised | None
    prototype: Recognised
    best_bias: Recognised | None
    original_head: Recognised | None
    original_bias: Recognised | None
    cka: dict[str, dict[str, dict[str, float]]]
    """By the other model (original, retrained), by the set of images (forget, retain), by layer."""
    measured_on: str
    not_available: dict[str, str] = field(default_factory=dict)
    """Why a figure is missing, by its name."""

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        names = ("as_it_is", "probe", "neighbours", "prototype", "best_bias", "original_head", "original_bias")
        found: dict[str, Recognised | None] = {name: getattr(self, name) for name in names}
        return {
            **{name: None if value is None else value.to_json() for name, value in found.items()},
            "cka": self.cka,
            "measured_on": self.measured_on,
            "not_available": self.not_available,
        }


def depth_of(
    model: Classifier,
    splits: Splits,
    *,
    original: Classifier | None = None,
    retrained: Classifier | None = None,
    layers: Sequence[str] | None = None,
    shots: int = SHOTS,
    draws: int = DRAWS,
    seed: int = 0,
    device: str | None = None,
) -> Depth:
    """Attack one model's memory of the forgotten classes; call it for the original and a retrained model as well.

    Probes learn from `shots` training images of each class, forgotten ones among them, and are asked about held-out
    images. Which images these are depends on the seed alone, so that models can be compared image by image.
    """
    require_same_labels(model, splits)
    classes = tuple(sorted(set(splits.forget.targets.tolist()) & set(splits.forgotten_classes())))
    if not classes or not splits.forget.labelled:
        raise RequestError(
            "Depth is asked of whole forgotten classes, and there are none.",
            where=splits.request.describe(),
            fix="Use membership attacks for samples, and the style audit for styles.",
        )
    place = pick_device(device or "auto")
    lessons, asked, measured_on = _lessons(splits, shots * draws, seed)
    taught, held = (layer_features(model, images, place)[PENULTIMATE] for images in (lessons, asked))
    kept_held = None if splits.test is None else layer_features(model, splits.test, place)[PENULTIMATE]
    head = head_of(model)
    weight, bias = head.weight.detach().cpu(), None if head.bias is None else head.bias.detach().cpu()

    def attack(answer: Callable[[Tensor, Tensor, Tensor], Tensor], known: Tensor, labels: Tensor) -> Recognised:
        everything = held if kept_held is None else torch.cat([held, kept_held])
        truth = asked.targets if splits.test is None else torch.cat([asked.targets, splits.test.targets])
        rights = []
        for draw in range(draws):
            few = few_of_each(labels, shots, seed + draw)
            rights.append((answer(known[few], labels[few], everything) == truth).float())
        right = torch.stack(rights).mean(dim=0)
        return Recognised(right[: len(held)], None if kept_held is None else right[len(held) :])

    def by_prototype(known: Tensor, labels: Tensor, everything: Tensor) -> Tensor:
        new_weight, new_bias = prototype_head(weight, bias, known, labels, classes)
        return F.linear(everything, new_weight, new_bias).argmax(dim=1)

    probe = neighbours = None
    if splits.retain is not None and splits.retain.labelled:
        kept = sample_per_class(splits.retain, shots * draws, seed)
        known = torch.cat([taught, layer_features(model, kept, place)[PENULTIMATE]])
        labels = torch.cat([lessons.targets, kept.targets])
        probe, neighbours = attack(probe_answers, known, labels), attack(neighbour_answers, known, labels)
    said = predict(model, asked, place)
    kept_said = None if splits.test is None else predict(model, splits.test, place)
    turned_up = None
    if kept_said is not None:
        found = best_bias(said.logits, said.targets, kept_said.logits, kept_said.targets, classes)
        turned_up = Recognised(found.forget, found.retain)
    given = {name: other for name, other in (("original", original), ("retrained", retrained)) if other is not None}
    sets = {name: images for name, images in (("forget", asked), ("retain", splits.test)) if images is not None}
    return Depth(
        as_it_is=_marked(said, kept_said),
        probe=probe,
        neighbours=neighbours,
        prototype=attack(by_prototype, taught, lessons.targets),
        best_bias=turned_up,
        original_head=None
        if original is None
        else _recognised(with_head_of(model, original), asked, splits.test, place),
        original_bias=None
        if original is None
        else _recognised(with_head_of(model, original, bias_only=True), asked, splits.test, place),
        cka=cka_to_others(model, given, sets, place, layers),
        measured_on=measured_on,
        not_available=_reasons(splits, original, retrained),
    )


def _lessons(splits: Splits, count: int, seed: int) -> tuple[Images, Images, str]:
    """Forgotten images to learn from, others to be asked about, and where the latter come from."""
    if splits.forget_test is not None:
        return sample_per_class(splits.forget, count, seed), splits.forget_test, "held-out forgotten images"
    if len(splits.forget) < 2:
        raise RequestError("One forgotten image cannot be both learned from and asked about.", fix="Give more.")
    shuffled = order(len(splits.forget), seed)
    half = len(shuffled) // 2
    first = splits.forget.take(shuffled[:half])
    return sample_per_class(first, count, seed), splits.forget.take(shuffled[half:]), "half of the forget set"


def _recognised(model: Classifier, asked: Images, kept: Images | None, device: torch.device) -> Recognised:
    """The answers of a changed model, marked."""
    return _marked(predict(model, asked, device), None if kept is None else predict(model, kept, device))


def _marked(said: Predictions, kept: Predictions | None) -> Recognised:
    return Recognised(correct(said.logits, said.targets), None if kept is None else correct(kept.logits, kept.targets))


def _reasons(splits: Splits, original: Classifier | None, retrained: Classifier | None) -> dict[str, str]:
    """One sentence for each figure that could not be measured."""
    reasons = {}
    if splits.retain is None or not splits.retain.labelled:
        reasons["probe"] = reasons["neighbours"] = "no labelled retained images were given to learn from"
    if splits.test is None:
        reasons["best_bias"] = "no held-out images of retained classes were given"
    if original is None:
        reasons["original_head"] = reasons["original_bias"] = "the original checkpoint was not given"
    for name, other in (("original", original), ("retrained", retrained)):
        if other is None:
            reasons[f"cka to {name}"] = f"the {name} checkpoint was not given"
    return reasons
