"""A stand-in for the model that never saw a style: a linear classifier on a layer's features of retained images.

Features in the middle of a network are general enough that a style which the classifier never saw is about as hard for
it as for a network trained without that style; and training it takes a second, not a retraining.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from famr.data import Images
from famr.data.loaders import Batch, order
from famr.engine.devices import single_thread
from famr.engine.distributed import ALONE, Ranks
from famr.errors import RequestError
from famr.models.activations import LayerOutput

RIDGE = 0.1
"""Inverse strength of the classifier's ℓ₂ penalty, for standardised features."""

IMAGES = 5000
"""The most retained images it is trained on."""


def probe_images(retain: Images | None) -> Images | None:
    """Retained images for the classifier, drawn with a fixed seed."""
    return None if retain is None else retain.take(order(len(retain), 0)[:IMAGES])


@torch.no_grad()
def mean_features(
    module: nn.Module, tap: LayerOutput, batches: Iterable[Batch], ranks: Ranks = ALONE
) -> tuple[Tensor, Tensor]:
    """Each image's activations of the layer, averaged over positions; and the labels."""
    features, labels = [], []
    for batch in batches:
        module(batch.images)
        found = tap.features(len(batch.images)).mean(dim=-1).float()
        features.append(ranks.gather(found, len(batch.labels)).cpu())
        labels.append(batch.labels.cpu())
    return torch.cat(features), torch.cat(labels)


def probe_target(kept: Tensor, labels: Tensor, forget: Tensor, classes: int) -> Tensor:
    """What a logistic regression on `kept` features answers to the `forget` ones; 0 for a class it never saw.

    >>> kept, labels = torch.tensor([[-1.0], [-1.0], [1.0], [1.0]]), torch.tensor([0, 0, 2, 2])
    >>> probe_target(kept, labels, torch.tensor([[0.0]]), classes=3)
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
    probe = make_pipeline(StandardScaler(), LogisticRegression(C=RIDGE, max_iter=1000))
    with single_thread():
        probe.fit(kept.double().numpy(), labels.numpy())
        answers = probe.predict_proba(forget.double().numpy())
    said = torch.zeros(len(forget), classes)
    said[:, known] = torch.from_numpy(answers).float()
    return said
