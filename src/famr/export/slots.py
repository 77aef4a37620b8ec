"""Remove classes from the head of a network: their rows of weights are deleted, not masked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from famr.errors import CheckpointError, RequestError
from famr.models import Classifier
from famr.models.classifier import eval_mode

SLOT_TOLERANCE = 1e-4
"""How far the remaining logits may change, relative to the largest: rounding alone."""


def remaining_slots(labels: Sequence[str], removed: Sequence[str]) -> list[int]:
    """Indices of the classes that stay in the head.

    Args:
        labels: Class names of the model, by index.
        removed: Names of the classes to remove.

    Raises:
        RequestError: A name is unknown, or fewer than two classes would stay.

    >>> remaining_slots(["apple", "pear", "fig"], ["pear"])
    [0, 2]
    """
    if unknown := [name for name in removed if name not in labels]:
        raise RequestError(f"The model has no class {unknown[0]!r}.", where="the label map", fix="famr classes RUN")
    remaining = [index for index, name in enumerate(labels) if name not in removed]
    if len(remaining) < 2:
        raise RequestError(
            f"Without {len(removed)} of its {len(labels)} classes the model would have nothing to choose between.",
            fix="Export it with all of its slots.",
        )
    return remaining


def without_slots(model: Classifier, removed: Sequence[str]) -> Classifier:
    """A copy of a model whose head and label map lack some classes; the remaining logits are unchanged.

    Args:
        model: The model; it stays as it is.
        removed: Names of the classes to remove.

    Raises:
        RequestError: A name is unknown, or fewer than two classes would stay.
        CheckpointError: The architecture cannot be built with fewer classes, or its remaining logits would change.
    """
    labels = model.labels or ()
    remaining = remaining_slots(labels, removed)
    with torch.random.fork_rng(devices=[]):
        smaller = model.architecture.build(len(remaining))
    tensors = dict(model.module.state_dict())
    for name, blank in smaller.state_dict().items():
        shape, index = tensors[name].shape, torch.tensor(remaining, device=tensors[name].device)
        for dimension in range(blank.ndim):
            if blank.shape[dimension] != shape[dimension]:
                tensors[name] = tensors[name].index_select(dimension, index)
    smaller.load_state_dict(tensors)
    reduced = replace(model, module=smaller.eval(), labels=tuple(labels[index] for index in remaining))
    _require_same_logits(model, reduced, remaining)
    return reduced


def _require_same_logits(model: Classifier, reduced: Classifier, remaining: list[int]) -> None:
    """Refuse a network that computes more with its classes than one row each."""
    prepared = model.require_preprocessing()
    noise = torch.randn(2, prepared.channels, *prepared.crop, generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), eval_mode(model.module):
        before, after = model.logits(noise)[:, remaining], reduced.logits(noise)
    if float((before - after).abs().max()) > SLOT_TOLERANCE * (1 + float(before.abs().max())):
        raise CheckpointError(
            "The forgotten class cannot be removed from this architecture without changing other logits.",
            where=f"{model.architecture.library}:{model.architecture.name}",
            fix="Export it with all of its slots.",
        )
