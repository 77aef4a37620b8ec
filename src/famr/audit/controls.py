"""Controls of an audit: models of which it is known what a gate has to say about them.

original    saw the forget set: a gate on forgetting that it does not fail has no power here
retrained   never saw it: has to pass
never saw   never saw it either, and was trained for a fraction of the epochs: a gate that it fails measures the length
            of training, not memory
head only   the original with the forgotten classes switched off in its head, features untouched: has to fail some gate
            on depth
collapsed   predicts one class for everything: has to fail the gates on utility
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from famr.audit.measurements import ModelMeasurements
from famr.data import Images
from famr.metrics.predictions import Predictions
from famr.models import Classifier
from famr.models.layers import head_of
from famr.training import Trained, Training, fit

NEVER_SAW_EPOCHS = 4
"""A never-saw model is trained for one epoch where a retrained one is trained for so many."""
LEARNED_SHARE = 0.8
"""The share of retrained models' retained accuracy that a never-saw model has to reach to be used."""
SWITCHED_OFF = 1e3
"""By how much the bias of a forgotten class is lowered in a head-only edit."""


def head_only_edit(original: Classifier, classes: tuple[int, ...]) -> Classifier | None:
    """The original with the bias of some classes lowered until they are never predicted.

    Its predictions are those of the original with these classes masked out: hidden as well as a head can hide them.

    Args:
        original: Is not changed.
        classes: Indices of the forgotten classes.

    Returns:
        None where there is no class to switch off, or the head has no bias.
    """
    edited = original.copy()
    bias = head_of(edited).bias
    if bias is None or not classes:
        return None
    with torch.no_grad():
        bias[list(classes)] -= SWITCHED_OFF
    return edited


def train_never_saw(
    start: Callable[[int], Classifier], retain: Images, training: Training, seed: int, device: str | None = None
) -> Trained:
    """A model trained on the retained images alone, for a fraction of the epochs.

    Args:
        start: Starting weights from a seed, as the original's training had them.
        retain: Retained training images.
        training: Of the original.
        seed: Of the start and of the training.
        device: None: the best there is.
    """
    short = replace(training, epochs=max(1, training.epochs // NEVER_SAW_EPOCHS))
    return fit(start(seed), retain, short, seed=seed, device=device)


def learned_enough(never_saw: float, retrained: list[float]) -> bool:
    """Whether a never-saw model knows the retained classes well enough for its failures to mean something.

    Args:
        never_saw: Its held-out retained accuracy.
        retrained: Those of the retrained models.

    >>> learned_enough(0.7, [0.8, 0.82]), learned_enough(0.3, [0.8, 0.82])
    (True, False)
    """
    return bool(retrained) and never_saw >= LEARNED_SHARE * sum(retrained) / len(retrained)


def collapsed(model: ModelMeasurements) -> ModelMeasurements:
    """What would be measured on a model that predicts the commonest held-out class for every image.

    Args:
        model: Any model of the audit; its images and their classes are taken.
    """
    commonest = int(model.test.targets.mode().values)

    def constant(predictions: Predictions) -> Predictions:
        logits = torch.zeros_like(predictions.logits)
        logits[:, commonest] = 10.0
        return replace(predictions, logits=logits)

    return ModelMeasurements(
        forget=constant(model.forget),
        retain=constant(model.retain),
        test=constant(model.test),
        forget_test=None if model.forget_test is None else constant(model.forget_test),
        non_members=torch.zeros_like(model.non_members),
    )
