"""The sets of images that follow from a request: forget, retain and test."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from famr.data import Data, Images
from famr.data.request import SHOWN, Request
from famr.errors import RequestError


@dataclass(frozen=True)
class EarlierRequest:
    """A request that an earlier run made the model forget.

    Attributes:
        request: What it named.
        classes: Names of the classes that were forgotten as a whole.
        drift: ‖θ − θ₀‖ of that run.
        original_sha256: Digest of the weights that it started from; None where that was not recorded.
    """

    request: Request
    classes: tuple[str, ...]
    drift: float
    original_sha256: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As stored in run.json."""
        return {
            "request": self.request.to_json(),
            "classes": list(self.classes),
            "drift": self.drift,
            "original_sha256": self.original_sha256,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> EarlierRequest:
        """The inverse of `to_json`.

        Args:
            values: What `to_json` returned.
        """
        request = Request.from_json(values["request"])
        return cls(request, tuple(values["classes"]), values["drift"], values.get("original_sha256"))


@dataclass(frozen=True, eq=False)
class Splits:
    """The sets that a request makes of the data; disjoint, None where no such images were given.

    Attributes:
        request: What is forgotten.
        forget: Training images to forget.
        retain: Training images to retain.
        test: Held-out images that are not forgotten; retained accuracy is measured on them.
        forget_test: Held-out images of the forgotten class, concept or style; None for samples.
        labels: Class names by index.
        earlier: Earlier requests; their images are in none of the sets above.
        earlier_images: Training images of each earlier request; None where they are no longer available.

    Raises:
        RequestError: The forget set or the retain set is empty, or an image is in two sets.
    """

    request: Request
    forget: Images
    retain: Images | None = None
    test: Images | None = None
    forget_test: Images | None = None
    labels: tuple[str, ...] | None = None
    earlier: tuple[EarlierRequest, ...] = ()
    earlier_images: tuple[Images | None, ...] = ()

    def __post_init__(self) -> None:
        if len(self.forget) == 0:
            raise RequestError(
                "The forget set is empty.",
                where=self.request.describe(),
                fix="Check the request against the data.",
            )
        if self.retain is not None and len(self.retain) == 0:
            raise RequestError(
                f"The request covers all {len(self.forget)} training images and leaves nothing.",
                where=self.request.describe(),
                fix="Request less, or train a new model on other data.",
            )
        set_of: dict[str, str] = {}
        for name in ("forget", "retain", "test", "forget_test"):
            images: Images | None = getattr(self, name)
            for id_ in images.ids if images is not None else ():
                if set_of.setdefault(id_, name) != name:
                    raise RequestError(
                        f"An image is in two sets, {set_of[id_]} and {name}.",
                        where=id_,
                        fix="Give each image one id, and each set its own images.",
                    )

    def forgotten_classes(self) -> tuple[int, ...]:
        """Indices of the classes that are forgotten as a whole, now or earlier: none of their images is retained."""
        forgotten = set(self.forget.class_counts())
        if self.retain is not None:
            forgotten -= self.retain.class_counts().keys()
        labels = self.labels or ()
        earlier = {labels.index(name) for run in self.earlier for name in run.classes if name in labels}
        return tuple(sorted(forgotten | earlier))

    def forgets_classes(self) -> bool:
        """Whether whole classes are forgotten and nothing else: the true label of each forget image is then wrong."""
        class_like = self.request.kind in ("class", "concept")
        return class_like and set(self.forget.targets.tolist()) <= set(self.forgotten_classes())

    def newly_forgotten_classes(self) -> tuple[str, ...]:
        """Names of the classes that this request forgets as a whole."""
        earlier = {name for run in self.earlier for name in run.classes}
        names = [self.labels[index] for index in self.forgotten_classes()] if self.labels else []
        return tuple(name for name in names if name not in earlier)


def sample_per_class(images: Images, count: int, seed: int, skip: int = 0) -> Images:
    """A random sample of up to `count` images of each class.

    Args:
        images: The set to draw from.
        count: Images of each class.
        seed: Of the random order.
        skip: Images of each class to leave out, the first in the same order: a sample with the same seed and
            `count=skip` is disjoint from this one.
    """
    shuffled = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    targets, by_class = images.targets[shuffled].sort(stable=True)
    _, sizes = torch.unique_consecutive(targets, return_counts=True)
    starts = (sizes.cumsum(0) - sizes).repeat_interleave(sizes)  # where each image's class begins
    index = torch.arange(len(images)) - starts  # within the class
    return images.take(shuffled[by_class][(index >= skip) & (index < skip + count)])


def split(data: Data, request: Request, earlier: Sequence[EarlierRequest] = ()) -> Splits:
    """The forget, retain and test images of a request.

    Args:
        data: Training and test images.
        request: What to forget.
        earlier: Requests that the model has already forgotten; their images are in none of the sets.

    Raises:
        RequestError: The request names nothing, something unknown, all of the data, or only images of earlier requests.
    """
    if request.kind == "images":
        raise RequestError("The request names nothing.", fix="Name classes, samples, a concept or a style.")
    test = _or_none(data.test)
    forgotten_earlier = [_earlier_mask(data, data.train, run) for run in earlier]
    available = torch.ones(len(data.train), dtype=torch.bool)
    for mask in forgotten_earlier:
        available &= ~mask
    for run in earlier:
        test = test and _or_none(test.where(~_earlier_mask(data, test, run)))
    forget_test = None
    if request.kind == "samples":
        forget = _sample_mask(data.train, request.samples)
    else:
        forget = _mask(data, data.train, request)
        if test is not None:
            held_out = _mask(data, test, request, required=False)
            forget_test = _or_none(test.where(held_out))
            test = _or_none(test.where(~held_out))
    if earlier and not bool((forget & available).any()):
        raise RequestError(
            "All of this was forgotten before.",
            where=", ".join(run.request.describe() for run in earlier),
            fix="There is nothing left to do; or start from a model that has not forgotten it.",
        )
    return Splits(
        request,
        data.train.where(forget & available),
        data.train.where(~forget & available),
        test,
        forget_test,
        data.labels,
        tuple(earlier),
        tuple(_or_none(data.train.where(mask)) for mask in forgotten_earlier),
    )


def forget_only(images: Images, labels: tuple[str, ...] | None = None) -> Splits:
    """The splits of a user who has nothing but the images to forget.

    Args:
        images: The forget set.
        labels: Class names by index; None where they are not known.

    Raises:
        RequestError: There are no images.
    """
    return Splits(Request(), images, labels=labels)


def _or_none(images: Images | None) -> Images | None:
    return images if images else None


def _earlier_mask(data: Data, images: Images, run: EarlierRequest) -> Tensor:
    """Which images an earlier run was about.

    Samples count by their ids alone: an index means another image once images are gone from the data.
    """
    if run.request.kind == "samples":
        ids = {str(sample) for sample in run.request.samples}
        return torch.tensor([id_ in ids for id_ in images.ids], dtype=torch.bool)
    if run.request.kind == "images":
        return _mask(data, images, Request(classes=run.classes))
    return _mask(data, images, run.request, required=False)


def _mask(data: Data, images: Images, request: Request, required: bool = True) -> Tensor:
    """Which images a class, concept or style request is about."""
    pair = request.concept or request.style
    if pair is None:
        classes = torch.tensor([_class_index(name, data.labels) for name in request.classes])
        return torch.isin(images.targets, classes)
    column, value = pair
    values = images.column(column)
    if required and value not in values:
        raise RequestError(
            f"No training image has {column} = {value!r} ({len(values)} rows searched).",
            where=f"{column}: {_nearest(value, sorted(set(values)))}",
            fix="Use one of the values of this column.",
        )
    return torch.tensor([row_value == value for row_value in values], dtype=torch.bool)


def _class_index(name: str, labels: Sequence[str]) -> int:
    if labels.count(name) == 1:
        return labels.index(name)
    if name in labels:
        raise RequestError(f"Two classes are called {name!r}.", where="the label map", fix="Rename one of them.")
    near = _nearest(name, labels)
    raise RequestError(
        f"Unknown class {name!r}. Did you mean {near}?" if near else f"Unknown class {name!r}.",
        where=f"{len(labels)} classes are known" + (f", from {labels[0]!r} to {labels[-1]!r}" if labels else ""),
        fix="List them with `famr classes`; names are case-sensitive.",
    )


def _nearest(name: str, known: Sequence[str]) -> str:
    """The most similar names, whatever their case; all of them where there are few and none is similar."""
    folded = {candidate.casefold(): candidate for candidate in reversed(known)}
    close = difflib.get_close_matches(name.casefold(), list(folded), n=SHOWN, cutoff=0.5)
    candidates = [folded[key] for key in close] or (list(known) if len(known) <= SHOWN else [])
    return " or ".join(repr(candidate) for candidate in candidates)


def _sample_mask(images: Images, samples: Sequence[str | int]) -> Tensor:
    """Which images a request for samples is about; see `Request.samples`."""
    ids = images.ids
    index_of = {id_: index for index, id_ in enumerate(ids)}
    by_name: dict[str, list[int]] = {}  # filled when the first path is named that is no id
    mask = torch.zeros(len(ids), dtype=torch.bool)
    missing = []
    for sample in samples:
        text = str(sample)
        if text in index_of:
            matches = [index_of[text]]
        elif text.removeprefix("-").isdecimal():
            matches = [int(text)] if 0 <= int(text) < len(ids) else []
        else:
            by_name = by_name or _by_name(ids)
            matches = [index for index in by_name.get(Path(text).name, []) if _same_path(ids[index], text)]
        if len(matches) > 1:
            raise RequestError(
                f"Sample {text!r} fits {len(matches)} images.",
                where=", ".join(ids[index] for index in matches[:SHOWN]),
                fix="Give more of the path.",
            )
        if not matches:
            missing.append(text)
        elif mask[matches[0]]:
            raise RequestError(
                f"Sample {text!r} is an image that the request names already.",
                where=ids[matches[0]],
                fix="Name each once.",
            )
        mask[matches] = True
    if missing:
        raise RequestError(
            f"{len(missing)} of {len(samples)} samples are not in the training images "
            f"(positions 0 to {len(ids) - 1}; ids such as {ids[0]!r}).",
            where=", ".join(missing[:SHOWN]),
            fix="Check the ids; nothing was forgotten.",
        )
    return mask


def _by_name(ids: Sequence[str]) -> dict[str, list[int]]:
    """Indices of ids by the last part of their path."""
    indices: dict[str, list[int]] = {}
    for index, id_ in enumerate(ids):
        indices.setdefault(Path(id_).name, []).append(index)
    return indices


def _same_path(id_: str, text: str) -> bool:
    """Whether the shorter path is the end of the longer one."""
    ours, theirs = Path(id_).parts, Path(text).parts
    shorter = min(len(ours), len(theirs))
    return ours[-shorter:] == theirs[-shorter:]
