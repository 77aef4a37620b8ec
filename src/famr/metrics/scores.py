"""The paper's five metrics of up to three models, from their predictions."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from famr.metrics.forgetting import correct, cross_entropy, entropy, kl_divergence
from famr.metrics.predictions import Predictions


@dataclass(frozen=True)
class ModelScores:
    """One model's five metrics: accuracies as fractions, the rest in nats; None where the images were not given.

    Attributes:
        retain_accuracy: Ret-Acc, on held-out images that are not forgotten.
        forget_accuracy: For-Acc, on the forget set.
        forget_test_accuracy: For-Acc on held-out images of the forgotten class, concept or style.
        forget_cross_entropy: CE, mean over the forget set.
        forget_entropy: Ent, mean over the forget set.
        forget_kl: KL to the original's predictions, mean over the forget set.
        counts: Images behind each accuracy: `retain`, `forget`, `forget_test`.
    """

    retain_accuracy: float | None
    forget_accuracy: float | None
    forget_test_accuracy: float | None
    forget_cross_entropy: float | None
    forget_entropy: float
    forget_kl: float | None
    counts: dict[str, int | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Scores:
    """The metrics of the original, the unlearned and the retrained model, and |unlearned − retrained|.

    Attributes:
        original: Of the original model; None where it was not given.
        unlearned: Of the unlearned model.
        retrained: Of a retrained model; None where there is none.
        gap: |unlearned − retrained| by metric, and the JS divergence; None without a retrained model.
        not_available: Why a metric is missing, by its name.
        earlier: The unlearned model's accuracy on what earlier requests made it forget; None where those images are no
            longer available.
    """

    original: ModelScores | None
    unlearned: ModelScores
    retrained: ModelScores | None
    gap: dict[str, float | None] | None
    not_available: dict[str, str]
    earlier: dict[str, float | None] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As stored in metrics.json."""
        return asdict(self)


def score(
    forget: Predictions, original: Predictions | None, test: Predictions | None, forget_test: Predictions | None
) -> ModelScores:
    """The five metrics from a model's predictions.

    Args:
        forget: On the forget set.
        original: Those of θ₀ on the same images; None where it was not given.
        test: On held-out images that are not forgotten; None without such images.
        forget_test: On held-out images of the forgotten class, concept or style; None without such images.
    """
    return ModelScores(
        retain_accuracy=accuracy(test),
        forget_accuracy=accuracy(forget),
        forget_test_accuracy=accuracy(forget_test),
        forget_cross_entropy=float(cross_entropy(forget.logits, forget.targets).mean()) if forget.labelled else None,
        forget_entropy=float(entropy(forget.logits).mean()),
        forget_kl=None if original is None else float(kl_divergence(original.logits, forget.logits).mean()),
        counts={
            "retain": None if test is None else len(test.targets),
            "forget": len(forget.targets),
            "forget_test": None if forget_test is None else len(forget_test.targets),
        },
    )


def accuracy(predictions: Predictions | None) -> float | None:
    """The share of images whose most likely class is their label.

    Args:
        predictions: On the images; None where there are none.

    Returns:
        A fraction; None without images or labels.
    """
    if predictions is None or not predictions.labelled:
        return None
    return float(correct(predictions.logits, predictions.targets).mean())
