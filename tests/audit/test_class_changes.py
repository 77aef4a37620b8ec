"""Accuracy of each retained class before and after."""

from __future__ import annotations

import math

import pytest
import torch

from famr.audit.class_changes import class_changes, loss_of_nearest, nearness
from famr.metrics.predictions import Predictions


def test_the_class_that_lost_most_comes_first() -> None:
    labels = torch.tensor([1, 1, 2, 2, 3, 3])
    right = 5 * torch.eye(4)[labels]
    worse = right.clone()
    worse[0] = 5 * torch.eye(4)[2]
    worse[1] = 5 * torch.eye(4)[2]
    worse[4] = 5 * torch.eye(4)[2]
    near = nearness(torch.tensor([[9.0, 2.0, 0.0, 0.0]]), torch.tensor([0]))
    changes = class_changes(Predictions(right, labels), Predictions(worse, labels), near)
    assert [(change.target, change.change) for change in changes] == [(1, -1.0), (3, -0.5), (2, 0.0)]
    assert changes[0].nearness == pytest.approx(math.exp(2) / (math.exp(2) + 2))
    assert loss_of_nearest(changes, 1) == -1.0
