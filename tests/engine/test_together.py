"""Forget images and those whose answers are held, in one pass: the same step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import famr
from conftest import alg1, styled
from famr.anchors import AnchorTerm, FunctionAnchor, L2Anchor
from famr.config import FAMR
from famr.data import Data
from famr.data.loaders import Batch
from famr.engine import together
from famr.engine.together import Together, held_together
from famr.unlearn import loop as optimise

Weights = list[Tensor]


def ends(model: famr.Classifier, splits: famr.Splits, method: FAMR) -> tuple[Weights, int]:
    """The weights a run ends with, and the passes through the network that its steps took."""
    passes = 0

    def count(_module: nn.Module, _inputs: Any, out: Tensor) -> None:
        nonlocal passes
        passes += out.requires_grad

    seen = nn.modules.module.register_module_forward_hook(
        lambda module, inputs, out: count(module, inputs, out) if type(module) is type(model.module) else None
    )
    try:
        result = famr.forget(model, splits, method, seed=0, device="cpu", track_retain=False)
    finally:
        seen.remove()
    return [parameter.detach() for parameter in result.module.parameters()], passes


def apart(one: Weights, other: Weights) -> float:
    return sum(float((a - b).square().sum()) for a, b in zip(one, other, strict=True)) ** 0.5


@pytest.mark.parametrize(
    "method",
    [
        FAMR(epochs=3, strength=0.0),
        FAMR(epochs=1, optimiser="adam", strength=1e-4),
        FAMR(epochs=1, anchor="kfac", strength=1.0),
    ],
    ids=["natural", "adam", "K-FAC"],
)
def test_a_step_is_that_of_two_passes(
    original: famr.Classifier, without_three: famr.Splits, method: FAMR, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, passes = ends(original, without_three, method)
    monkeypatch.setattr(optimise, "held_together", lambda *_: None)
    expected, twice = ends(original, without_three, method)
    start = [parameter.detach() for parameter in original.module.parameters()]
    assert 0 < apart(found, expected) < 1e-4 * apart(expected, start)
    steps = method.settled_epochs * 2  # 146 images, 128 at a time
    assert twice - passes == steps


def test_a_style_is_that_of_the_forget_images_alone(
    original: famr.Classifier, digits: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the layer says of held images is not theirs to be judged by."""
    data = styled(digits)
    splits = famr.split(data, famr.Request(style=("style", "negative")))
    method = FAMR(epochs=1, beta=1e-3, style_layer="blocks.0", strength=1e-4)
    found, _ = ends(original, splits, method)
    monkeypatch.setattr(optimise, "held_together", lambda *_: None)
    expected, _ = ends(original, splits, method)
    start = [parameter.detach() for parameter in original.module.parameters()]
    assert 0 < apart(found, expected) < 1e-3 * apart(expected, start)


def test_where_memory_runs_out_they_go_one_after_the_other(
    original: famr.Classifier, without_three: famr.Splits, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = FAMR(epochs=2, strength=0.0)
    expected, _ = ends(original, without_three, method)
    tried: list[int] = []

    def runs_out(_self: Together, batch: Batch, _parameters: object) -> Tensor:
        tried.append(len(batch.images))
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr(together.Together, "backward", runs_out)
    with pytest.warns(UserWarning, match="Memory ran out; each batch is taken in 2 parts"):
        found, _ = ends(original, without_three, method)
    assert tried == [73]  # once
    start = [parameter.detach() for parameter in original.module.parameters()]
    assert apart(found, expected) < 1e-4 * apart(expected, start)


class Loss:
    """Sums of what the network says."""

    def __init__(self, network: nn.Module) -> None:
        self.network = network

    def __call__(self, batch: Batch) -> Tensor:
        out: Tensor = self.network(batch.images).square().sum()
        return out

    def with_others(self, batch: Batch, others: Tensor) -> tuple[Tensor, Tensor]:
        said = self.network(torch.cat([batch.images, others]))
        return said[: len(batch.images)].square().sum(), said[len(batch.images) :]


def some(count: int, width: int = 3) -> Batch:
    draws = torch.Generator().manual_seed(count)
    return Batch(torch.randn(count, width, generator=draws), torch.zeros(count), torch.arange(count))


def test_both_gradients_are_added_up_with_their_strength() -> None:
    torch.manual_seed(0)
    network = nn.Linear(3, 4)
    kept = some(5)
    anchor = FunctionAnchor(network, lambda _seed: [kept], seed=0)
    with torch.no_grad():
        network.weight += 0.3
    batch, parameters = some(2), list(network.parameters())
    loss = Loss(network)
    slopes = torch.autograd.grad(loss(batch), parameters)
    expected = [slope + 7 * pull for slope, pull in zip(slopes, anchor.gradient(parameters), strict=True)]
    both = held_together(loss, [AnchorTerm(L2Anchor([]), 1.0), AnchorTerm(anchor, 7.0)], alg1())
    assert both is not None
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)  # of the step before
    said = both.backward(batch, parameters)
    assert torch.equal(said, loss(batch).detach())
    for parameter, slope in zip(parameters, expected, strict=True):
        torch.testing.assert_close(parameter.grad, slope)
    assert both.fits(batch)
    assert not both.fits(some(2, width=4))


def test_apart_they_go_where_that_is_another_step() -> None:
    network = nn.Linear(3, 4)
    kept = some(5)
    anchors = [AnchorTerm(L2Anchor([]), 1.0), AnchorTerm(FunctionAnchor(network, lambda _seed: [kept], seed=0), 1.0)]
    assert held_together(Loss(network), anchors, alg1()) is not None
    assert held_together(Loss(network), anchors, alg1(optimiser="adamw")) is None  # its pull is not scaled by Adam
    assert held_together(Loss(network), anchors[:1], alg1()) is None
    assert held_together(lambda batch: network(batch.images).sum(), anchors, alg1()) is None
