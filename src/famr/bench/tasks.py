"""Requests on the bench: the ones that are scored, and others on which methods are tuned."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from famr.data import Data
from famr.data.request import Request
from famr.errors import RequestError

SCORED_DRAW = 2025
TUNING_DRAW = 7
TUNING_REQUESTS = 3
"""Requests of each kind on which methods are tuned."""


@dataclass(frozen=True)
class Task:
    """A request under a short label.

    Attributes:
        label: Its name in tables and records.
        request: What to forget.
        facts: The request as plain values; samples by how they were drawn.
    """

    label: str
    request: Request
    facts: Mapping[str, Any] = field(compare=False, hash=False)

    @property
    def tuning_kind(self) -> str:
        """The kind of tuning request that stands in for this one: `class` or `samples`."""
        return "samples" if self.request.kind == "samples" else "class"


def request_task(request: Request) -> Task:
    """The task of a class or a concept.

    Args:
        request: What to forget.
    """
    return Task(request.describe(), request, request.to_json())


def samples_task(data: Data, share: float, draw: int = SCORED_DRAW, exclude: Collection[str] = ()) -> Task:
    """The task of training images drawn at random.

    Args:
        data: Where they are drawn from.
        share: Share of the training images, between 0 and 1.
        draw: Seed of the draw.
        exclude: Ids of images that are not drawn.

    Raises:
        RequestError: The share is out of range, or too few images are left.
    """
    if not 0 < share < 1:
        raise RequestError(f"The share of samples must lie between 0 and 1, got {share:g}.", where="--samples-share")
    count = round(share * len(data.train))
    order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(draw)).tolist()
    ids = data.train.ids
    samples = sorted([index for index in order if ids[index] not in exclude][:count])
    if count == 0 or len(samples) < count:
        raise RequestError(
            f"There are not {max(count, 1)} samples to draw.", where="--samples-share", fix="Take a smaller share."
        )
    digest = hashlib.sha256("\n".join(ids[index] for index in samples).encode()).hexdigest()
    facts = {"kind": "samples", "share": share, "draw": draw, "count": count, "sha256": digest}
    return Task(f"{100 * share:g} % of the samples, draw {draw}", Request(samples=samples), facts)


def drawn_classes(
    labels: Sequence[str], count: int, draw: int = SCORED_DRAW, exclude: Collection[str] = ()
) -> list[str]:
    """Classes drawn with a fixed seed, so that nobody picks them by their results.

    Args:
        labels: All class names.
        count: How many to draw.
        draw: Seed of the draw.
        exclude: Names that are not drawn.

    Raises:
        RequestError: There are not so many classes.
    """
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(draw)).tolist()
    drawn = [labels[index] for index in order if labels[index] not in exclude][: max(0, count)]
    if not 0 <= count <= len(drawn):
        raise RequestError(f"There are not {count} classes to draw.", where=f"{len(labels)} classes", fix="Take fewer.")
    return drawn


def requested_tasks(
    data: Data,
    classes: Sequence[str],
    random_classes: int = 0,
    concepts: Sequence[tuple[str, str]] = (),
    shares: Sequence[float] = (),
) -> tuple[Task, ...]:
    """The tasks that a command line names: one for each class, each concept and each share of samples.

    Args:
        data: The training data.
        classes: Class names.
        random_classes: Classes drawn in addition.
        concepts: (column, value) pairs.
        shares: Shares of the training images.

    Raises:
        RequestError: Nothing is to be forgotten, or there is too little to draw from.
    """
    drawn = drawn_classes(data.labels, random_classes, exclude=classes)
    requests = [Request(classes=[name]) for name in (*classes, *drawn)]
    requests += [Request(concept=pair) for pair in concepts]
    tasks = [*map(request_task, requests), *(samples_task(data, share) for share in shares)]
    if not tasks:
        raise RequestError("Nothing is to be forgotten.", where="famr bench", fix="--class NAME or --samples-share 0.1")
    return tuple(tasks)


def tuning_tasks(data: Data, scored: Sequence[Task]) -> tuple[Task, ...]:
    """Three requests to tune on for each kind that is scored: other classes, or draws of other samples.

    Classes are drawn from all that no scored request covers, near ones and far ones; where fewer are left, these. A
    concept is tuned on such classes too.

    Args:
        data: The training data.
        scored: The tasks on which methods are compared.
    """
    tasks = []
    if any(task.tuning_kind == "class" for task in scored):
        used = {name for task in scored for name in task.request.classes}
        for task in scored:
            if task.request.concept is not None:
                column, value = task.request.concept
                rows = zip(data.train.column(column), data.train.targets.tolist(), strict=True)
                used |= {data.labels[target] for content, target in rows if content == value}
        left = sum(name not in used for name in data.labels)
        drawn = drawn_classes(data.labels, min(TUNING_REQUESTS, max(1, left)), TUNING_DRAW, used)
        tasks += [request_task(Request(classes=[name])) for name in drawn]
    of_samples = [task for task in scored if task.tuning_kind == "samples"]
    if of_samples:
        ids = data.train.ids
        used = {ids[int(index)] for task in of_samples for index in task.request.samples}
        share = max(task.facts["share"] for task in of_samples)
        draws = range(TUNING_DRAW, TUNING_DRAW + TUNING_REQUESTS)
        tasks += [samples_task(data, min(share, 1 - len(used) / len(ids)), draw, used) for draw in draws]
    return tuple(tasks)
