"""Attacks with shadow models: can models that unlearned the forget set be told from models that never saw it?

LiRA asks whether a model saw the images, U-LiRA whether it saw and unlearned them; KLoM compares the margins of both
kinds. All shadows share one forget set, that of the request: the attacker knows what was asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from famr.audit.lira import (
    THRESHOLD,
    lira_left_out,
    lira_scores,
    scaled_confidence,
    u_lira_scored,
    unlearned_against_retrained,
)
from famr.audit.roc import Roc, Scored, image_auc, roc
from famr.audit.verdict import Check, Figure, check
from famr.audit.witness import Witness
from famr.errors import RequestError
from famr.metrics.retraining import klom

FEWEST_MODELS = 3
"""Models of each kind below which a left-out attack has nothing to fit its normals on."""
SHOWN = 5
"""Images that are named as the most exposed."""


@dataclass(frozen=True, eq=False)
class Populations:
    """What shadow models say about the forget set, as logits (models, images, classes) in the order of the images."""

    targets: Tensor  # (images,)
    unlearned: Tensor
    """Trained on everything, then made to unlearn the forget set."""
    retrained: Tensor
    """Trained without the forget set."""
    trained: Tensor | None = None
    """The first kind before it unlearned."""

    def __post_init__(self) -> None:
        for name in ("unlearned", "retrained", "trained"):
            logits: Tensor | None = getattr(self, name)
            if logits is not None and (logits.ndim != 3 or logits.shape[1] != len(self.targets)):
                raise RequestError(
                    f"`{name}` must be (models, {len(self.targets)} images, classes), got {tuple(logits.shape)}.",
                    where="Populations",
                    fix="Ask every shadow model about the forget set, in its order.",
                )

    @classmethod
    def of(
        cls,
        targets: Tensor,
        unlearned: Sequence[Tensor],
        retrained: Sequence[Tensor],
        trained: Sequence[Tensor] = (),
    ) -> Populations:
        """From one (images, classes) a model."""
        return cls(
            targets,
            torch.stack([*unlearned]),
            torch.stack([*retrained]),
            torch.stack([*trained]) if trained else None,
        )


def u_lira_rocs(found: Populations, seed: int = 0) -> dict[str, Roc | str]:
    """U-LiRA on each kind of model, or why not.

    unlearned   the shadows that unlearned against retrained ones
    original    the same shadows before they unlearned: plain LiRA
    retrained   one half of the retrained shadows against the other: what a coin gets with so few models
    """
    pairs = {
        "unlearned": (found.unlearned, found.retrained),
        "original": (found.trained, found.retrained),
        "retrained": (found.retrained[0::2], found.retrained[1::2]),
    }
    rocs: dict[str, Roc | str] = {}
    for name, (ours, theirs) in pairs.items():
        if ours is None:
            rocs[name] = "not available: the shadows were not asked before they unlearned"
        elif min(len(ours), len(theirs)) < FEWEST_MODELS:
            rocs[name] = (
                f"not available: {len(ours)} and {len(theirs)} shadow models, fewer than {FEWEST_MODELS} a kind"
            )
        else:
            rocs[name] = roc(u_lira_scored(ours, theirs, found.targets), threshold=THRESHOLD, seed=seed)
    return rocs


def u_lira_gate(rocs: Mapping[str, Roc | str], limits: Mapping[str, float], models: Sequence[str]) -> Check:
    """The accuracy of the decision "unlearned or retrained", image by image."""
    figures = {}
    for name in (*models, "retrained"):
        found = rocs[name]
        if isinstance(found, str):
            figures[name] = Figure.not_available(found)
        elif found.accuracy is None:
            figures[name] = Figure.not_available("too few forget images for the accuracy of U-LiRA")
        else:
            figures[name] = Figure(found.accuracy.value, found.accuracy.low, found.accuracy.high)
    says = "U-LiRA: accuracy of telling models that unlearned from retrained ones, image by image (original: LiRA)."
    return check("u_lira_accuracy", says, limits["u_lira_accuracy"], figures)


def lira_of(witness: Witness, found: Populations, seed: int = 0) -> Roc | None:
    """LiRA on one audited model: its answers to the forget set against those of retrained shadows.

    The normals are of shadows that saw the images and of shadows that did not; None where there are too few of them.
    """
    if found.trained is None or min(len(found.trained), len(found.retrained)) < FEWEST_MODELS:
        return None
    inside, outside = (scaled_confidence(logits, found.targets) for logits in (found.trained, found.retrained))
    shadows = unlearned_against_retrained(inside, torch.ones(inside.shape, dtype=torch.bool), outside)
    ours = lira_scores(scaled_confidence(witness.forget.logits, found.targets), shadows)
    theirs = lira_left_out(shadows).scores[len(inside) :]
    scores = torch.cat([ours[None], theirs])
    seen = torch.zeros(scores.shape, dtype=torch.bool)
    seen[0] = True
    return roc(Scored(scores, seen, ~seen), threshold=THRESHOLD, seed=seed)


def shadow_statements(
    found: Populations, rocs: Mapping[str, Roc | str], witnesses: Mapping[str, Witness], ids: Sequence[str], seed: int
) -> dict[str, Any]:
    """All figures of the shadow attacks, as plain values."""
    counts = {
        "unlearned": len(found.unlearned),
        "retrained": len(found.retrained),
        "trained": 0 if found.trained is None else len(found.trained),
    }
    lira = {name: lira_of(witness, found, seed) for name, witness in witnesses.items()}
    said: dict[str, Any] = {
        "u_lira": {name: each if isinstance(each, str) else each.to_json() for name, each in rocs.items()},
        "lira": {name: None if each is None else each.to_json() for name, each in lira.items()},
        "klom": klom_statement(found),
    }
    if not isinstance(rocs["unlearned"], str):
        exposed = image_auc(u_lira_scored(found.unlearned, found.retrained, found.targets))
        worst = exposed.argsort(descending=True, stable=True)[:SHOWN].tolist()
        said["most_exposed"] = [{"id": ids[place], "auc": float(exposed[place])} for place in worst]
    return {"needs_retrained": True, "models": counts, **said}


def klom_statement(found: Populations) -> dict[str, Any] | str:
    """KLoM of the unlearned shadows, and between halves of the retrained ones as the floor; percentiles over images."""
    if min(len(found.unlearned), len(found.retrained) // 2) < 2:
        return "not available: two unlearned and four retrained models at least"
    ours, theirs = (scaled_confidence(logits, found.targets) for logits in (found.unlearned, found.retrained))
    ends = torch.tensor([0.5, 0.95], dtype=torch.double)
    values = {"unlearned": klom(ours, theirs), "among_retrained": klom(theirs[0::2], theirs[1::2])}
    quantiles = {name: value.double().quantile(ends).tolist() for name, value in values.items()}
    return {name: {"median": middle, "95th_percentile": high} for name, (middle, high) in quantiles.items()}
