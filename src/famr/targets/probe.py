"""The probe target: for styles."""

from __future__ import annotations

import torch
from torch import Tensor

from famr.engine.devices import single_thread
from famr.errors import RequestError
from famr.targets.base import Target, TargetInputs

INVERSE_PENALTY = 0.1
"""scikit-learn's C of the classifier's ℓ₂ penalty, for standardised features."""

PROBE_IMAGES = 5000
"""The most retained images that it is trained on."""


def probe(inputs: TargetInputs) -> Target:
    """The prediction of a linear classifier on mid-network features that never saw the style: for styles.

    Features in the middle of a network are general enough that an unseen style is about as hard for the classifier as
    for a network trained without that style; and it trains in a second.

    Args:
        inputs: Reads `features`.

    Raises:
        RequestError: There is no style layer, or there are no labelled retained images of two classes.
    """
    if inputs.features is None:
        raise RequestError(
            "The probe target needs a style layer and labelled retained images.",
            where="target",
            fix="Use masked, reference or uniform; for a style give the whole data.",
        )
    retained, labels, forget = inputs.features()
    return Target(probe_target(retained, labels, forget, inputs.classes))


def probe_target(retained: Tensor, labels: Tensor, forget: Tensor, classes: int) -> Tensor:
    """Probabilities of a logistic regression fitted to `retained` features on the `forget` ones.

    Args:
        retained: (images, channels).
        labels: (images,).
        forget: (images, channels).
        classes: C; a class that the regression never saw gets 0.

    Raises:
        RequestError: There are fewer than two classes, or images without labels.

    >>> retained, labels = torch.tensor([[-1.0], [-1.0], [1.0], [1.0]]), torch.tensor([0, 0, 2, 2])
    >>> probe_target(retained, labels, torch.tensor([[0.0]]), classes=3)
    tensor([[0.5000, 0.0000, 0.5000]])
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    known = torch.tensor(sorted(set(labels.tolist())))
    if len(known) < 2 or int(known.min()) < 0:
        raise RequestError(
            "The probe target needs labelled retained images of at least two classes.",
            where="target",
            fix="Give the whole data, or use the uniform target.",
        )
    classifier = make_pipeline(StandardScaler(), LogisticRegression(C=INVERSE_PENALTY, max_iter=1000))
    with single_thread():
        classifier.fit(retained.double().numpy(), labels.numpy())
        probabilities = classifier.predict_proba(forget.double().numpy())
    target = torch.zeros(len(forget), classes)
    target[:, known] = torch.from_numpy(probabilities).float()
    return target
