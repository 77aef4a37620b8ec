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
    """What the model was made to forget before, in an earlier run."""

    request: Request
    classes: tuple[str, ...]
    """The classes that it forgot whole."""
    drift: float
    """How far that run moved the weights."""

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {"request": self.request.to_json(), "classes": list(self.classes), "drift": self.drift}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> EarlierRequest:
        """The inverse of `to_json`."""
        return cls(Request.from_json(values["request"]), tuple(values["classes"]), values["drift"])


@dataclass(frozen=True, eq=False)
class Splits:
    """The sets that a request makes of the data; None where no such images were given."""

    request: Request
    forget: Images
    retain: Images | None = None
    test: Images | None = None
    """Held-out images that are not forgotten: what retained accuracy is measured on."""
    forget_test: Images | None = None
    """Held-out images of the forgotten class, concept or style; none for samples."""
    labels: tuple[str, ...] | None = None
    """What the class indices of these images mean."""
    earlier: tuple[EarlierRequest, ...] = ()
    """What was forgotten before; its images are in none of the sets above."""
    earlier_images: tuple[Images | None, ...] = ()
    """Training images of each of these, where they are still at hand."""

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
                fix="Ask for less, or train a new model on other data.",
            )
        seen: dict[str, str] = {}
        for name in ("forget", "retain", "test", "forget_test"):
            images: Images | None = getattr(self, name)
            for id_ in images.ids if images is not None else ():
                if seen.setdefault(id_, name) != name:
                    raise RequestError(
                        f"An image is in two sets, {seen[id_]} and {name}.",
                        where=id_,
                        fix="Give each image one id, and each set its own images.",
                    )

    def forgotten_classes(self) -> tuple[int, ...]:
        """The classes that are forgotten whole, now or before: in the forget set, and not in the retained one."""
        forgotten = set(self.forget.class_counts())
        if self.retain is not None:
            forgotten -= self.retain.class_counts().keys()
        labels = self.labels or ()
        before = {labels.index(name) for run in self.earlier for name in run.classes if name in labels}
        return tuple(sorted(forgotten | before))

    def forgets_classes(self) -> bool:
        """Whether whole classes are forgotten and nothing else: after that every right answer is wrong."""
        asked = self.request.kind in ("class", "concept")
        return asked and set(self.forget.targets.tolist()) <= set(self.forgotten_classes())

    def newly_forgotten_classes(self) -> tuple[str, ...]:
        """The names of the classes that this request forgets whole."""
        before = {name for run in self.earlier for name in run.classes}
        names = [self.labels[index] for index in self.forgotten_classes()] if self.labels else []
        return tuple(name for name in names if name not in before)


def some_of_each_class(images: Images, count: int, seed: int, skip: int = 0) -> Images:
    """Up to `count` images of each class, drawn with `seed`; others than the first `skip` so drawn."""
    shuffled = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    targets, by_class = images.targets[shuffled].sort(stable=True)
    _, sizes = torch.unique_consecutive(targets, return_counts=True)
    first = (sizes.cumsum(0) - sizes).repeat_interleave(sizes)  # where the class of each begins
    place = torch.arange(len(images)) - first
    return images.take(shuffled[by_class][(place >= skip) & (place < skip + count)])


def split(data: Data, request: Request, earlier: Sequence[EarlierRequest] = ()) -> Splits:
    """The forget, retain and test images of a request; disjoint, and none of the first two empty.

    What `earlier` runs forgot is in none of them: neither retained nor forgotten anew.
    """
    if request.kind == "images":
        raise RequestError("The request names nothing.", fix="Name classes, samples, a concept or a style.")
    test = _or_none(data.test)
    gone = [_gone(data, data.train, run) for run in earlier]
    left = ~torch.stack(gone).any(dim=0) if gone else torch.ones(len(data.train), dtype=torch.bool)
    if test is not None:
        for run in earlier:
            test = test and _or_none(test.where(~_gone(data, test, run)))
    forget_test = None
    if request.kind == "samples":
        forgotten = _sample_mask(data.train, request.samples)
    else:
        forgotten = _mask(data, data.train, request)
        if test is not None:
            held_out = _mask(data, test, request, required=False)
            forget_test = _or_none(test.where(held_out))
            test = _or_none(test.where(~held_out))
    if earlier and not bool((forgotten & left).any()):
        raise RequestError(
            "All of this was forgotten before.",
            where=", ".join(run.request.describe() for run in earlier),
            fix="There is nothing left to do; or start from a model that has not forgotten it.",
        )
    return Splits(
        request,
        data.train.where(forgotten & left),
        data.train.where(~forgotten & left),
        test,
        forget_test,
        data.labels,
        tuple(earlier),
        tuple(_or_none(data.train.where(mask)) for mask in gone),
    )


def _gone(data: Data, images: Images, run: EarlierRequest) -> Tensor:
    """Which images an earlier run was about; samples by their ids alone, as a position means another image once some
    are gone from the data."""
    if run.request.kind == "samples":
        wanted = {str(sample) for sample in run.request.samples}
        return torch.tensor([id_ in wanted for id_ in images.ids], dtype=torch.bool)
    if run.request.kind == "images":
        return _mask(data, images, Request(classes=run.classes))
    return _mask(data, images, run.request, required=False)


def forget_only(images: Images, labels: tuple[str, ...] | None = None) -> Splits:
    """For a user who has nothing but the images to forget; `labels` names their classes, where that is known."""
    return Splits(Request(), images, labels=labels)


def _or_none(images: Images | None) -> Images | None:
    return images if images else None


def _mask(data: Data, images: Images, request: Request, required: bool = True) -> Tensor:
    """Which images a class, concept or style request is about."""
    pair = request.concept or request.style
    if pair is None:
        wanted = torch.tensor([_class_index(name, data.labels) for name in request.classes])
        return torch.isin(images.targets, wanted)
    column, value = pair
    values = images.column(column)
    if required and value not in values:
        known = sorted(set(values))
        raise RequestError(
            f"No training image has {column} = {value!r} ({len(values)} rows searched).",
            where=f"{column}: {_nearest(value, known)}",
            fix="Use one of the values of this column.",
        )
    return torch.tensor([found == value for found in values], dtype=torch.bool)


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
    folded = {candidate.casefold(): candidate for candidate in reversed(known)}
    close = difflib.get_close_matches(name.casefold(), list(folded), n=SHOWN, cutoff=0.5)
    found = [folded[key] for key in close] or (list(known) if len(known) <= SHOWN else [])
    return " or ".join(repr(candidate) for candidate in found)


def _sample_mask(images: Images, samples: Sequence[str | int]) -> Tensor:
    """Each sample is an id, a position in the training images, or a path that ends like exactly one id."""
    ids = images.ids
    position_of = {id_: position for position, id_ in enumerate(ids)}
    by_name: dict[str, list[int]] = {}  # made when a path is named that is no id
    mask = torch.zeros(len(ids), dtype=torch.bool)
    missing = []
    for sample in samples:
        text = str(sample)
        if text in position_of:
            found = [position_of[text]]
        elif text.removeprefix("-").isdecimal():
            found = [int(text)] if 0 <= int(text) < len(ids) else []
        else:
            by_name = by_name or _by_name(ids)
            found = [p for p in by_name.get(Path(text).name, []) if _same_path(ids[p], text)]
        if len(found) > 1:
            raise RequestError(
                f"Sample {text!r} fits {len(found)} images.",
                where=", ".join(ids[position] for position in found[:SHOWN]),
                fix="Give more of the path.",
            )
        if not found:
            missing.append(text)
        elif mask[found[0]]:
            raise RequestError(
                f"Sample {text!r} is an image that the request names already.",
                where=ids[found[0]],
                fix="Name each once.",
            )
        mask[found] = True
    if missing:
        raise RequestError(
            f"{len(missing)} of {len(samples)} samples are not in the training images "
            f"(positions 0 to {len(ids) - 1}; ids such as {ids[0]!r}).",
            where=", ".join(missing[:SHOWN]),
            fix="Check the ids; nothing was forgotten.",
        )
    return mask


def _by_name(ids: Sequence[str]) -> dict[str, list[int]]:
    """The positions of ids that end with the same name."""
    found: dict[str, list[int]] = {}
    for position, id_ in enumerate(ids):
        found.setdefault(Path(id_).name, []).append(position)
    return found


def _same_path(id_: str, text: str) -> bool:
    ours, theirs = Path(id_).parts, Path(text).parts
    shorter = min(len(ours), len(theirs))
    return ours[-shorter:] == theirs[-shorter:]
