"""Logits of shadow models for a request: the run's own training and unlearning, repeated with other seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from famr.audit.shadows import Method, OnShadow, Setting, train_references, train_whole
from famr.errors import RequestError

FEWEST_MODELS = 3
"""Models of each kind below which a leave-one-out attack cannot fit its normals."""


@dataclass(frozen=True, eq=False)
class ShadowLogits:
    """Logits of shadow models on the forget set, (models, images, classes), in the order of the images.

    Attributes:
        targets: Classes of the images, (images,).
        unlearned: Of models trained on everything and then made to unlearn the forget set.
        retrained: Of models trained without the forget set.
        trained: Of the first kind before they unlearned; None where those are not known.
    """

    targets: Tensor
    unlearned: Tensor
    retrained: Tensor
    trained: Tensor | None = None

    def __post_init__(self) -> None:
        for name in ("unlearned", "retrained", "trained"):
            logits: Tensor | None = getattr(self, name)
            if logits is not None and (logits.ndim != 3 or logits.shape[1] != len(self.targets)):
                raise RequestError(
                    f"`{name}` must be (models, {len(self.targets)} images, classes), got {tuple(logits.shape)}.",
                    where="ShadowLogits",
                    fix="Evaluate every shadow model on the forget set, in its order.",
                )

    @classmethod
    def of(
        cls,
        targets: Tensor,
        unlearned: Sequence[Tensor],
        retrained: Sequence[Tensor],
        trained: Sequence[Tensor] = (),
    ) -> ShadowLogits:
        """Stack logits (images, classes) of single models.

        Args:
            targets: Classes of the images, (images,).
            unlearned: One tensor for each model that unlearned.
            retrained: One for each model that never saw the forget set.
            trained: One for each model before it unlearned; empty where those are not known.
        """
        return cls(
            targets,
            torch.stack([*unlearned]),
            torch.stack([*retrained]),
            torch.stack([*trained]) if trained else None,
        )


def train_shadow_logits(
    setting: Setting,
    method: Method,
    count: int,
    cache: Path,
    *,
    device: str | None = None,
    on_shadow: OnShadow | None = None,
) -> ShadowLogits:
    """Half of the models train on everything and unlearn the forget set, the other half never see it.

    What is in the cache is not trained again, so an interrupted call resumes.

    Args:
        setting: How the original was trained; its pool is the forget set, its base the retain set.
        method: How the original was made to unlearn.
        count: Models in all: even, and at least six.
        cache: Folder of logits and weights.
        device: None: the best there is.
        on_shadow: Called after each trained model.

    Raises:
        RequestError: For an odd number of models or too few.
    """
    if count < 2 * FEWEST_MODELS or count % 2:
        raise RequestError(
            f"Shadows come in pairs, at least {2 * FEWEST_MODELS} models in all, got {count}.",
            where="shadows",
            fix="16 is a fair start; more narrow the interval.",
        )
    half = count // 2
    trained = train_whole(setting, half, cache, device=device, on_shadow=on_shadow)
    unlearned = train_whole(setting, half, cache, method=method, device=device)
    retrained = train_references(setting, half, cache, device=device, on_shadow=on_shadow)
    return ShadowLogits(setting.pool.targets, unlearned.logits, retrained.logits, trained.logits)
