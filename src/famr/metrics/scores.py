"""The paper's five metrics of up to three models, as numbers of their predictions."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from famr.metrics.forgetting import correct, cross_entropy, entropy, kl_divergence
from famr.metrics.predictions import Predictions


@dataclass(frozen=True)
class ModelScores:
    """One model's five metrics as fractions and nats; None where the images for it were not given."""

    retain_accuracy: float | None
    forget_accuracy: float | None
    forget_test_accuracy: float | None
    forget_cross_entropy: float | None
    forget_entropy: float
    forget_kl: float | None
    counts: dict[str, int | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Scores:
    """The metrics of the original, the unlearned and the retrained model, and |unlearned − retrained|."""

    original: ModelScores | None
    unlearned: ModelScores
    retrained: ModelScores | None
    gap: dict[str, float | None] | None
    not_available: dict[str, str]
    """Why a figure is missing, by its name."""
    earlier: dict[str, float | None] = field(default_factory=dict)
    """The unlearned model's accuracy on what it was made to forget before; None where those images are gone."""

    def to_json(self) -> dict[str, Any]:
        """As it is stored in metrics.json."""
        return asdict(self)


def score(
    forget: Predictions, original: Predictions | None, test: Predictions | None, forget_test: Predictions | None
) -> ModelScores:
    """The five metrics from a model's answers; `original` holds θ₀'s answers on the same forget images."""
    known = forget.labelled
    return ModelScores(
        retain_accuracy=accuracy(test),
        forget_accuracy=accuracy(forget),
        forget_test_accuracy=accuracy(forget_test),
        forget_cross_entropy=float(cross_entropy(forget.logits, forget.targets).mean()) if known else None,
        forget_entropy=float(entropy(forget.logits).mean()),
        forget_kl=None if original is None else float(kl_divergence(original.logits, forget.logits).mean()),
        counts={
            "retain": None if test is None else len(test.targets),
            "forget": len(forget.targets),
            "forget_test": None if forget_test is None else len(forget_test.targets),
        },
    )


def accuracy(found: Predictions | None) -> float | None:
    """The share of images whose most likely class is their label; None without images or labels."""
    return float(correct(found.logits, found.targets).mean()) if found is not None and found.labelled else None
