"""Update rules against torch's optimisers, and what every rule promises."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from famr.anchors import AnchorTerm, L2Anchor
from famr.optim import OPTIMISERS
from famr.optim.adam import BETAS

STEPS, RATE, STRENGTH = 6, 0.1, 0.7


def weights() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) for shape in ((3, 4), (5,))]


def slow_gradient(parameters: list[nn.Parameter], start: list[Tensor], anchored: bool) -> tuple[Tensor, list[Tensor]]:
    loss = sum(((parameter - 1) ** 2).sum() for parameter in parameters)
    assert isinstance(loss, Tensor)
    total = loss
    if anchored:
        total = loss + STRENGTH / 2 * sum(((p - p0) ** 2).sum() for p, p0 in zip(parameters, start, strict=True))
    return loss.detach(), list(torch.autograd.grad(total, parameters))


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_a_penalty_is_differentiated_as_part_of_the_objective(name: str) -> None:
    start = weights()
    ours, theirs = ([nn.Parameter(w.clone()) for w in start] for _ in range(2))
    update = OPTIMISERS[name](ours, [AnchorTerm(L2Anchor(start), STRENGTH)])
    slow = torch.optim.SGD(theirs, lr=1.0) if name == "sgd" else torch.optim.Adam(theirs, lr=1.0, betas=BETAS)
    for step in range(STEPS):
        rate = update.rate_at(RATE, step, STEPS)
        update.set_rate(rate)
        update.step(*slow_gradient(ours, start, anchored=False))
        slow.param_groups[0]["lr"] = rate
        for parameter, gradient in zip(theirs, slow_gradient(theirs, start, anchored=True)[1], strict=True):
            parameter.grad = gradient
        slow.step()
    for a, b, p0 in zip(ours, theirs, start, strict=True):
        torch.testing.assert_close(a, b)
        assert not torch.allclose(a, p0, atol=1e-2)


@pytest.mark.parametrize("name", OPTIMISERS)
def test_a_rule_that_loads_its_state_continues_as_if_never_interrupted(name: str) -> None:
    start = weights()

    def take(parameters: list[nn.Parameter], first: int, last: int, state: dict[str, Tensor]) -> dict[str, Tensor]:
        update = OPTIMISERS[name](parameters, [AnchorTerm(L2Anchor(start), STRENGTH)])
        update.load_state({"weight.0": torch.zeros(1), **state})  # as the state of a run has the weights too
        for step in range(first, last):
            update.set_rate(update.rate_at(RATE, step, STEPS))
            update.step(*slow_gradient(parameters, start, anchored=False))
        return {key: tensor.clone() for key, tensor in update.state().items()}

    whole = [nn.Parameter(w.clone()) for w in start]
    take(whole, 0, STEPS, {})
    half = [nn.Parameter(w.clone()) for w in start]
    state = take(half, 0, 3, {})
    take(half, 3, STEPS, state)
    assert all(torch.equal(a, b) for a, b in zip(whole, half, strict=True))


def test_plain_sgd_keeps_its_rate_and_the_other_rules_let_it_fall() -> None:
    start = weights()
    rates = {}
    for name, rule in OPTIMISERS.items():
        update = rule([nn.Parameter(w) for w in start], [AnchorTerm(L2Anchor(start), 0.0)])
        rates[name] = [update.rate_at(1.0, step, 40) for step in range(40)]
    assert set(rates["sgd"]) == {1.0}
    for name in set(rates) - {"sgd"}:
        assert rates[name][-1] < 0.01, name
    assert rates["natural"][0] == 1.0
    assert rates["adam"][0] == pytest.approx(0.25, rel=1e-2)  # a tenth of the steps is warm-up
    assert max(rates["adam"]) == rates["adam"][3]
