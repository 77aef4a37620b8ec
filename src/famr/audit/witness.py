"""What one model says when it is questioned: its answers, and what each attack gets out of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from famr.audit.costs import Stopwatch
from famr.audit.depth import Depth, depth_of
from famr.audit.relearning import Lessons, Relearned, relearning
from famr.audit.style_audit import StyleRead, style_read
from famr.audit.survival import CHANGES, Survival, survival
from famr.data import Images
from famr.data.loaders import order
from famr.data.splits import Splits
from famr.engine.inference import predict
from famr.errors import CheckpointError, RequestError
from famr.metrics.membership import predict_non_members
from famr.metrics.predictions import Predictions
from famr.models import Classifier
from famr.models.labels import require_same_labels

RETAINED_IMAGES = 5000
HELD_OUT_IMAGES = 10_000
ATTACK_IMAGES = 2000
"""Members and non-members that the membership attack learns from, and held-out images that probes are asked about."""
ATTACKS = 5
"""Times that the membership attack learns anew: one draw of it may go either way on answers it has never met."""
CHANGED_IMAGES = 1000
"""Forget images that changed copies of a model are asked about."""
FEWEST_IMAGES = 20
"""Below this many forget images no interval says anything."""

LESSONS = Lessons(images=20, steps=30)
LESSON_SEEDS = (0, 1, 2)
LEARNERS = 2
"""Retrained models that relearn: it is the slowest part."""


@dataclass(frozen=True)
class StyleLayer:
    """Where a style is read from."""

    name: str
    channels_last: bool = False


@dataclass(frozen=True, eq=False)
class Witness:
    """One model; None where a question was not put, or cannot be for such a request."""

    forget: Predictions
    retain: Predictions
    test: Predictions
    forget_test: Predictions | None
    non_members: Tensor
    """How often the membership attack calls each forget image a non-member, as a share of its draws."""
    depth: Depth | None = None
    """What is left of the forgotten classes in the features."""
    style: StyleRead | None = None
    relearned: tuple[Relearned, ...] | None = None
    survived: Survival | None = None


@dataclass(frozen=True, eq=False)
class Questions:
    """What everybody is asked, drawn once: the same images for each model."""

    splits: Splits
    retain: Images
    test: Images
    few: Splits
    """The request with fewer held-out images, for the attacks that learn."""
    seed: int
    device: torch.device

    @classmethod
    def about(cls, splits: Splits, seed: int, device: torch.device) -> Questions:
        """Check that the whole data is there, and draw."""
        if splits.retain is None or splits.test is None or not splits.forget.labelled:
            raise RequestError("An audit needs the whole data, with labels.", where="splits", fix="Give --data.")
        few = replace(splits, test=drawn(splits.test, ATTACK_IMAGES, seed))
        return cls(
            splits,
            drawn(splits.retain, RETAINED_IMAGES, seed),
            drawn(splits.test, HELD_OUT_IMAGES, seed),
            few,
            seed,
            device,
        )

    @property
    def enough(self) -> bool:
        """Whether there are images enough for any verdict."""
        return len(self.splits.forget) >= FEWEST_IMAGES


def drawn(images: Images, at_most: int, seed: int) -> Images:
    """All images, or as many as allowed, drawn with a seed."""
    return images if len(images) <= at_most else images.take(order(len(images), seed)[:at_most])


def require_comparable(models: Mapping[str, Classifier], splits: Splits) -> None:
    """Refuse models of another architecture or label map than the first."""
    first_name, first = next(iter(models.items()))
    shapes = {name: tuple(tensor.shape) for name, tensor in first.module.state_dict().items()}
    for name, model in models.items():
        if first.labels is not None and model.labels is not None and model.labels != first.labels:
            raise CheckpointError(
                f"The {name} model names other classes than the {first_name} one.",
                where=f"{model.spec}: {len(model.labels)} classes, {first.spec}: {len(first.labels)}",
                fix="Compare models that were trained on the same classes.",
            )
        theirs = {place: tuple(tensor.shape) for place, tensor in model.module.state_dict().items()}
        if theirs != shapes:
            differs = sorted(set(theirs.items()) ^ set(shapes.items()))[0][0]
            raise CheckpointError(
                f"The {name} model is of another architecture than the {first_name} one.",
                where=f"{model.spec} ({model.architecture.name}): {differs}",
                fix="Audit against models of one architecture, trained alike.",
            )
    require_same_labels(first, splits)


def question(
    model: Classifier, asked: Questions, original: Classifier | None, style: StyleLayer | None, costs: Stopwatch
) -> Witness:
    """Ask one model for its answers, and attack it where it stands."""
    seed, place = asked.seed, asked.device
    with costs("answers"):
        forget, retain, test = (
            predict(model, images, place) for images in (asked.splits.forget, asked.retain, asked.test)
        )
        apart = None if asked.splits.forget_test is None else predict(model, asked.splits.forget_test, place)
    with costs("membership"):
        found = Witness(forget, retain, test, apart, membership(forget, retain, test, seed))
    if asked.enough and asked.splits.forgets_classes():
        with costs("depth"):
            depth = depth_of(model, asked.few, original=original, layers=(), seed=seed, device=str(place))
            found = replace(found, depth=depth)
    if asked.enough and style is not None:
        with costs("style"):
            read = style_read(
                model, asked.few, style.name, seed=seed, channels_last=style.channels_last, device=str(place)
            )
            found = replace(found, style=read)
    return found


def membership(forget: Predictions, retain: Predictions, test: Predictions, seed: int) -> Tensor:
    """How often each forget image is called a non-member; the draws are fitted side by side, each with its own seed."""
    members, others = (_true_class(said)[:ATTACK_IMAGES] for said in (retain, test))
    asked = _true_class(forget)
    with ThreadPoolExecutor(ATTACKS) as fitted:
        draws = fitted.map(lambda draw: predict_non_members(members, others, asked, seed + draw), range(ATTACKS))
        return torch.stack(list(draws)).mean(dim=0)


def relearned(
    models: Mapping[str, Classifier], asked: Questions, original: Classifier | None, costs: Stopwatch
) -> dict[str, tuple[Relearned, ...]]:
    """Each model's way back; nothing without the original, whose accuracy is the aim.

    At most half of the forget set is learned from; the rest is asked about.
    """
    if original is None:
        return {}
    resting = [name for name in models if name.startswith("retrained")][LEARNERS:]
    models = {name: model for name, model in models.items() if name not in resting}
    forget = asked.splits.forget
    share = len(forget) // (2 * len(set(forget.targets.tolist())))
    lessons = replace(LESSONS, images=max(1, min(LESSONS.images, share)))
    with costs("relearning"):
        return relearning(models, asked.splits, original, lessons, seeds=LESSON_SEEDS, device=str(asked.device))


def survived(
    models: Mapping[str, Classifier], asked: Questions, exported: Sequence[str], costs: Stopwatch
) -> dict[str, Survival]:
    """Each model after rounding; those that are named in `exported` also as ONNX, which takes the longest."""
    images = drawn(asked.splits.forget, CHANGED_IMAGES, asked.seed)
    found = {}
    with costs("survival"):
        for name, model in models.items():
            changes = [change for change in CHANGES if change != "onnx" or name in exported]
            found[name] = survival(model, images, changes=changes, device=str(asked.device))
    return found


def _true_class(said: Predictions) -> Tensor:
    return torch.softmax(said.logits, dim=-1).gather(-1, said.targets[:, None])[:, 0]
