"""Several classifiers as one: by the majority of their votes, or by their mean probability."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor, nn

from famr.losses.objective import at_least_float32
from famr.models.classifier import logits_of

Vote = Literal["majority", "mean"]


def mean_vote(logits: Tensor) -> Tensor:
    """The log of the mean probability.

    Args:
        logits: Of each model, (models, images, classes).

    Returns:
        Log-probabilities, (images, classes).

    >>> mean_vote(torch.tensor([[[0.0, 0.0]], [[0.0, 0.0]]])).exp()
    tensor([[0.5000, 0.5000]])
    """
    return torch.log_softmax(at_least_float32(logits), dim=-1).logsumexp(dim=0) - math.log(len(logits))


def majority_vote(logits: Tensor) -> Tensor:
    """The log of (votes + mean probability) / (models + 1).

    A probability is less than a vote, so the class with the most votes comes first, and the mean probability only
    breaks ties. It also keeps a class without votes from having the logarithm of zero.

    Args:
        logits: Of each model, (models, images, classes).

    Returns:
        Log-probabilities, (images, classes).

    >>> three = torch.tensor([[[0.1, 0.0]], [[0.1, 0.0]], [[0.0, 9.0]]])  # two lean to class 0, one is sure of class 1
    >>> int(majority_vote(three).argmax()), int(mean_vote(three).argmax())
    (0, 1)
    """
    votes = torch.zeros_like(logits[0], dtype=at_least_float32(logits).dtype)
    for choice in logits.argmax(dim=-1):  # (images,)
        votes += nn.functional.one_hot(choice, logits.shape[-1])
    return torch.logaddexp(votes.log(), mean_vote(logits)) - math.log(len(logits) + 1)


class Ensemble(nn.Module):
    """Networks of the same classes as one; it returns log-probabilities, which metrics read as logits.

    Args:
        members: The networks.
        vote: How their logits become one prediction.
    """

    def __init__(self, members: Iterable[nn.Module], vote: Vote) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.vote = {"majority": majority_vote, "mean": mean_vote}[vote]

    def forward(self, images: Tensor) -> Tensor:
        """Log-probabilities of a batch.

        Args:
            images: (batch, channels, height, width).

        Returns:
            (batch, classes).
        """
        return self.vote(torch.stack([logits_of(member(images)) for member in self.members]))
