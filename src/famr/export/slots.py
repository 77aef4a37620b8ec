"""Take classes out of a network's head: their rows of weights are gone, not hidden."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from famr.errors import CheckpointError, RequestError
from famr.models import Classifier
from famr.models.classifier import eval_mode

TOLERANCE = 1e-4
"""How far the logits of the other classes may move, relative to the largest: rounding, nothing more."""


def kept_slots(labels: Sequence[str], removed: Sequence[str]) -> list[int]:
    """The places of the classes that stay.

    >>> kept_slots(["apple", "pear", "fig"], ["pear"])
    [0, 2]
    """
    if unknown := [name for name in removed if name not in labels]:
        raise RequestError(f"The model has no class {unknown[0]!r}.", where="the label map", fix="famr classes RUN")
    kept = [place for place, name in enumerate(labels) if name not in removed]
    if len(kept) < 2:
        raise RequestError(
            f"Without {len(removed)} of its {len(labels)} classes the model would have nothing to choose between.",
            fix="Export it with all of its slots.",
        )
    return kept


def without_slots(model: Classifier, removed: Sequence[str]) -> Classifier:
    """A copy whose head and label map lack these classes; the other logits are what they were."""
    labels = model.labels or ()
    kept = kept_slots(labels, removed)
    with torch.random.fork_rng(devices=[]):
        smaller = model.architecture.build(len(kept))
    tensors = dict(model.module.state_dict())
    for name, blank in smaller.state_dict().items():
        shape = tensors[name].shape
        for dimension in (d for d in range(blank.ndim) if blank.shape[d] != shape[d]):
            tensors[name] = tensors[name].index_select(dimension, torch.tensor(kept, device=tensors[name].device))
    smaller.load_state_dict(tensors)
    shrunk = replace(model, module=smaller.eval(), labels=tuple(labels[place] for place in kept))
    _require_same_answers(model, shrunk, kept)
    return shrunk


def _require_same_answers(model: Classifier, shrunk: Classifier, kept: list[int]) -> None:
    """Some networks do more with their classes than one row each; those are refused."""
    prepared = model.require_preprocessing()
    noise = torch.randn(2, prepared.channels, *prepared.crop, generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), eval_mode(model.module):
        before, after = model.logits(noise)[:, kept], shrunk.logits(noise)
    if float((before - after).abs().max()) > TOLERANCE * (1 + float(before.abs().max())):
        raise CheckpointError(
            "The forgotten class cannot be taken out of this architecture without changing other answers.",
            where=f"{model.architecture.library}:{model.architecture.name}",
            fix="Export it with all of its slots.",
        )
