"""Attacks with shadow models: can models that unlearned the forget set be told from models that never saw it?

LiRA asks whether a model saw the images, U-LiRA whether it saw and unlearned them; KLoM compares the margins of both
kinds. All shadow models share one forget set, that of the request: the attacker knows what was requested.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from famr.audit.lira import (
    THRESHOLD,
    ShadowConfidences,
    leave_one_out_scores,
    lira_scores,
    scaled_confidence,
    u_lira,
    u_lira_scores,
)
from famr.audit.measurements import ModelMeasurements
from famr.audit.names import RETRAINED
from famr.audit.roc import AttackScores, RocSummary, image_auc, roc_summary
from famr.audit.shadow_logits import FEWEST_MODELS, ShadowLogits
from famr.metrics.retraining import KLOM_BINS, klom

FEWEST_FOR_VERDICT = 32
"""Shadow models of each kind below which U-LiRA gives no verdict."""
KLOM_MODELS = 5 * KLOM_BINS
"""Models of each kind below which the histograms of KLoM have too few in a bin."""
MOST_EXPOSED = 5
"""Images with the highest AUC that are named."""


def u_lira_by_kind(shadows: ShadowLogits, seed: int = 0) -> dict[str, RocSummary | str]:
    """U-LiRA on each kind of model, or why not.

    unlearned   the shadow models that unlearned against retrained ones
    original    the same models before they unlearned: plain LiRA
    retrained   one half of the retrained models against the other: the result of guessing with so few models

    Args:
        shadows: Their logits.
        seed: Of the bootstrap.
    """
    pairs = {
        "unlearned": (shadows.unlearned, shadows.retrained),
        "original": (shadows.trained, shadows.retrained),
        "retrained": (shadows.retrained[0::2], shadows.retrained[1::2]),
    }
    found: dict[str, RocSummary | str] = {}
    for name, (ours, theirs) in pairs.items():
        if ours is None:
            found[name] = "not available: there are no logits of the shadow models before they unlearned"
        elif min(len(ours), len(theirs)) < (FEWEST_FOR_VERDICT // 2 if name == RETRAINED else FEWEST_FOR_VERDICT):
            found[name] = (
                f"not available: a verdict takes {FEWEST_FOR_VERDICT} shadow models of each kind, and there are "
                f"{len(shadows.unlearned)} and {len(shadows.retrained)}"
            )
        else:
            found[name] = u_lira(ours, theirs, shadows.targets, seed=seed)
    return found


def lira_on(model: ModelMeasurements, shadows: ShadowLogits, seed: int = 0) -> RocSummary | None:
    """LiRA on one audited model: its predictions on the forget set against those of retrained shadow models.

    The normals are of shadow models that saw the images and of shadow models that did not.

    Args:
        model: The attacked model.
        shadows: Logits of the shadow models.
        seed: Of the bootstrap.

    Returns:
        None where there are too few shadow models.
    """
    if shadows.trained is None or min(len(shadows.trained), len(shadows.retrained)) < FEWEST_MODELS:
        return None
    inside, outside = (scaled_confidence(logits, shadows.targets) for logits in (shadows.trained, shadows.retrained))
    confidences = ShadowConfidences.of_unlearned(inside, torch.ones(inside.shape, dtype=torch.bool), outside)
    own = lira_scores(scaled_confidence(model.forget.logits, shadows.targets), confidences)
    non_members = leave_one_out_scores(confidences).scores[len(inside) :]
    scores = torch.cat([own[None], non_members])
    seen = torch.zeros(scores.shape, dtype=torch.bool)
    seen[0] = True
    return roc_summary(AttackScores(scores, seen, ~seen), threshold=THRESHOLD, seed=seed)


def shadow_figures(
    shadows: ShadowLogits,
    summaries: Mapping[str, RocSummary | str],
    models: Mapping[str, ModelMeasurements],
    ids: Sequence[str],
    seed: int,
) -> dict[str, Any]:
    """All figures of the shadow attacks, as plain values.

    Args:
        shadows: Logits of the shadow models.
        summaries: Of U-LiRA, by kind of model.
        models: Models to run LiRA on, by name.
        ids: Of the forget images.
        seed: Of the bootstrap.
    """
    counts = {
        "unlearned": len(shadows.unlearned),
        "retrained": len(shadows.retrained),
        "trained": 0 if shadows.trained is None else len(shadows.trained),
    }
    lira = {name: lira_on(model, shadows, seed) for name, model in models.items()}
    figures: dict[str, Any] = {
        "u_lira": {name: each if isinstance(each, str) else each.to_json() for name, each in summaries.items()},
        "lira": {name: None if each is None else each.to_json() for name, each in lira.items()},
        "klom": klom_figures(shadows),
    }
    if not isinstance(summaries["unlearned"], str):
        exposure = image_auc(u_lira_scores(shadows.unlearned, shadows.retrained, shadows.targets))
        worst = exposure.argsort(descending=True, stable=True)[:MOST_EXPOSED].tolist()
        figures["most_exposed"] = [{"id": ids[index], "auc": float(exposure[index])} for index in worst]
    return {"needs_retrained": True, "models": counts, **figures}


def klom_figures(shadows: ShadowLogits) -> dict[str, Any] | str:
    """Percentiles over images of KLoM of the unlearned models, and between halves of the retrained ones as the floor.

    Args:
        shadows: Their logits.
    """
    if min(len(shadows.unlearned), len(shadows.retrained) // 2) < KLOM_MODELS:
        return (
            f"not available: its histograms of {KLOM_BINS} bins take {KLOM_MODELS} unlearned and {2 * KLOM_MODELS} "
            f"retrained models, and there are {len(shadows.unlearned)} and {len(shadows.retrained)}"
        )
    ours, theirs = (scaled_confidence(logits, shadows.targets) for logits in (shadows.unlearned, shadows.retrained))
    ends = torch.tensor([0.5, 0.95], dtype=torch.double)
    values = {"unlearned": klom(ours, theirs), "among_retrained": klom(theirs[0::2], theirs[1::2])}
    quantiles = {name: value.double().quantile(ends).tolist() for name, value in values.items()}
    return {name: {"median": middle, "95th_percentile": high} for name, (middle, high) in quantiles.items()}
