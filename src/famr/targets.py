"""What the model is to answer on the forget set: a distribution q an image, all of them through one KL(q ‖ p).

    uniform    1/C for every class: the paper's [FAMR, Eq. (2)]
    masked     the original's answer with the forgotten classes removed; for classes and concepts
    reference  the original's mean answer on held-out images of the same class; for samples
    tempered   the original's answer, made as unsure as it is on held-out images; for samples

A retrained model is not uniform on what it never saw: it is about as sure of a wrong class as of any new image.
The last three say so, and do not mark the forgotten images by their entropy.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from famr.metrics.forgetting import entropy
from famr.objective import at_least_float32

Target = Literal["uniform", "masked", "reference", "tempered"]

COLDEST, HOTTEST = 1 / 64, 64.0
BISECTIONS = 60


def tempered_target(logits: Tensor, temperature: float) -> Tensor:
    """softmax(z/τ): sharper below τ = 1, softer above.

    >>> tempered_target(torch.tensor([[0.0, 2.0]]), temperature=2.0)
    tensor([[0.2689, 0.7311]])
    """
    return torch.softmax(at_least_float32(logits) / temperature, dim=-1)


def without(logits: Tensor, forgotten: Tensor) -> Tensor:
    """Logits in which the forgotten classes (indices) can no longer be answered."""
    return at_least_float32(logits).index_fill(-1, forgotten, -torch.inf)


def masked_target(logits: Tensor, forgotten: Tensor, temperature: float) -> Tensor:
    """softmax(z/τ) over the classes that are not forgotten.

    >>> masked_target(torch.tensor([[9.0, 1.0, 1.0]]), torch.tensor([0]), temperature=1.0)
    tensor([[0.0000, 0.5000, 0.5000]])
    """
    return tempered_target(without(logits, forgotten), temperature)


def matching_temperature(logits: Tensor, wanted: float) -> float:
    """τ for which the mean entropy of softmax(z/τ) is `wanted`; the nearest possible τ where none is.

    The entropy grows with τ for each image, so bisection finds it.

    >>> round(matching_temperature(torch.tensor([[0.0, 1.0]]), wanted=float(entropy(torch.tensor([[0.0, 0.5]])))), 4)
    2.0
    """
    low, high = torch.tensor(COLDEST).log(), torch.tensor(HOTTEST).log()
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if float(entropy(at_least_float32(logits) / middle.exp()).mean()) < wanted:
            low = middle
        else:
            high = middle
    return float(((low + high) / 2).exp())


def class_means(logits: Tensor, labels: Tensor) -> Tensor:
    """(classes, classes): row y is the mean answer on images of class y; NaN where there are none.

    >>> class_means(torch.tensor([[9.0, 9.0], [9.0, 9.0]]), torch.tensor([1, 1]))
    tensor([[   nan,    nan],
            [0.5000, 0.5000]])
    """
    answers = torch.softmax(at_least_float32(logits), dim=-1)
    classes = answers.shape[-1]
    total = answers.new_zeros(classes, classes).index_add(0, labels, answers)
    return total / torch.bincount(labels, minlength=classes)[:, None]
