"""The probe target: for styles."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from famr.data.loaders import Batches, order
from famr.engine.base import Session
from famr.engine.devices import single_thread
from famr.errors import RequestError
from famr.models.activations import LayerOutput
from famr.targets.base import Target, TargetInputs

INVERSE_PENALTY = 0.1
"""scikit-learn's C of the classifier's ℓ₂ penalty, for standardised features."""

PROBE_IMAGES = 5000
"""The most retained images that it is trained on."""


class ProbeTarget(Target):
    """The prediction of a linear classifier on mid-network features that never saw the style: for styles.

    Features in the middle of a network are general enough that an unseen style is about as hard for the classifier as
    for a network trained without that style; and it trains in a second.
    """

    @classmethod
    def build(cls, inputs: TargetInputs) -> Self:
        """See `Target.build`."""
        session, style, retained = inputs.session, inputs.style, inputs.retained
        if style is None or retained is None:
            raise RequestError(
                "The probe target needs a style layer and labelled retained images.",
                where="target",
                fix="Use masked, reference or uniform; for a style give the whole data.",
            )
        sample = retained.take(order(len(retained), 0)[:PROBE_IMAGES])
        features, labels = mean_features(session, style, session.evaluation_batches(sample))
        forget_features, _ = mean_features(session, style, inputs.forget_batches)
        return cls(probe_target(features, labels, forget_features, inputs.classes))


@torch.no_grad()
def mean_features(session: Session, layer: LayerOutput, batches: Batches) -> tuple[Tensor, Tensor]:
    """Each image's activations of a layer, averaged over positions.

    Args:
        session: The network.
        layer: Reads the layer's output.
        batches: Passes over the images.

    Returns:
        Features (images, channels) and labels (images,), on the CPU.
    """
    features, labels = [], []
    for batch in batches(None):
        session.model.module(batch.images)
        means = layer.features(len(batch.images)).mean(dim=-1).float()
        features.append(session.gather(means, len(batch.labels)).cpu())
        labels.append(batch.labels.cpu())
    return torch.cat(features), torch.cat(labels)


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
