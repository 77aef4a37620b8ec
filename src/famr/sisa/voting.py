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


def mean_answer(logits: Tensor) -> Tensor:
    """The log of the mean probability: (models, images, classes) to (images, classes).

    >>> mean_answer(torch.tensor([[[0.0, 0.0]], [[0.0, 0.0]]])).exp()
    tensor([[0.5000, 0.5000]])
    """
    return torch.log_softmax(at_least_float32(logits), dim=-1).logsumexp(dim=0) - math.log(len(logits))


def majority_answer(logits: Tensor) -> Tensor:
    """The log of (votes + mean probability) / (models + 1): (models, images, classes) to (images, classes).

    A probability is less than a vote, so the class with the most votes comes first, and the mean probability only
    decides between equals. Without it a class that no model votes for would have the logarithm of zero.

    >>> three = torch.tensor([[[0.1, 0.0]], [[0.1, 0.0]], [[0.0, 9.0]]])  # two lean to class 0, one is sure of class 1
    >>> int(majority_answer(three).argmax()), int(mean_answer(three).argmax())
    (0, 1)
    """
    votes = torch.zeros_like(logits[0], dtype=at_least_float32(logits).dtype)
    for choice in logits.argmax(dim=-1):  # (images,)
        votes += nn.functional.one_hot(choice, logits.shape[-1])
    return torch.logaddexp(votes.log(), mean_answer(logits)) - math.log(len(logits) + 1)


class Ensemble(nn.Module):
    """Networks of the same classes, asked together; it returns log-probabilities, which metrics read as logits."""

    def __init__(self, members: Iterable[nn.Module], vote: Vote) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.answer = {"majority": majority_answer, "mean": mean_answer}[vote]

    def forward(self, images: Tensor) -> Tensor:
        """(batch, classes)."""
        return self.answer(torch.stack([logits_of(member(images)) for member in self.members]))
