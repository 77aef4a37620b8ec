"""What is to be forgotten on the bench: requests with a label, and those that are kept apart for tuning."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from famr.data import Data
from famr.data.request import Request
from famr.errors import RequestError

DRAW = 2025
TUNING_DRAW = 7


@dataclass(frozen=True)
class Task:
    """A request under a short label; `facts` are its plain values, samples by how they were drawn."""

    label: str
    request: Request
    facts: Mapping[str, Any] = field(compare=False, hash=False)


def request_task(request: Request) -> Task:
    """A class or a concept."""
    return Task(request.describe(), request, request.to_json())


def samples_task(data: Data, share: float, draw: int = DRAW, but_not: Collection[str] = ()) -> Task:
    """A share of the training images drawn at random, none of those in `but_not`."""
    if not 0 < share < 1:
        raise RequestError(f"The share of samples must lie between 0 and 1, got {share:g}.", where="--samples-share")
    count = round(share * len(data.train))
    order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(draw)).tolist()
    ids = data.train.ids
    picked = sorted([place for place in order if ids[place] not in but_not][:count])
    if count == 0 or len(picked) < count:
        raise RequestError(
            f"There are not {max(count, 1)} samples to draw.", where="--samples-share", fix="Take a smaller share."
        )
    names = [ids[place] for place in picked]
    digest = hashlib.sha256("\n".join(names).encode()).hexdigest()
    facts = {"kind": "samples", "share": share, "draw": draw, "count": count, "sha256": digest}
    return Task(f"{100 * share:g} % of the samples, draw {draw}", Request(samples=picked), facts)


def drawn_classes(labels: Sequence[str], count: int, draw: int = DRAW, but_not: Collection[str] = ()) -> list[str]:
    """Some classes, by a fixed draw and not by their results."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(draw)).tolist()
    found = [labels[place] for place in order if labels[place] not in but_not][: max(0, count)]
    if not 0 <= count <= len(found):
        raise RequestError(f"There are not {count} classes to draw.", where=f"{len(labels)} classes", fix="Take fewer.")
    return found


def tuning_tasks(data: Data, scored: Sequence[Task]) -> tuple[Task, ...]:
    """One other request for each kind that is scored: another class, or other samples.

    A concept is tuned on a class that none of the scored requests covers.
    """
    kinds = {task.request.kind for task in scored}
    found = []
    if kinds & {"class", "concept"}:
        used = {name for task in scored for name in task.request.classes}
        for task in scored:
            if task.request.concept is not None:
                column, value = task.request.concept
                rows = zip(data.train.column(column), data.train.targets.tolist(), strict=True)
                used |= {data.labels[target] for held, target in rows if held == value}
        found.append(request_task(Request(classes=drawn_classes(data.labels, 1, TUNING_DRAW, used))))
    if "samples" in kinds:
        ids = data.train.ids
        gone = {ids[int(place)] for task in scored for place in task.request.samples}
        share = max(task.facts["share"] for task in scored if task.request.kind == "samples")
        found.append(samples_task(data, min(share, 1 - len(gone) / len(ids)), TUNING_DRAW, gone))
    return tuple(found)


def tuned_on(task: Task) -> str:
    """Which kind of tuning request stands for this one."""
    return "samples" if task.request.kind == "samples" else "class"
