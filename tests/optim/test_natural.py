"""The step in the metric of the anchor, against dense algebra and closed forms."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import famr
from famr.anchors import AnchorTerm, FisherAnchor, FunctionAnchor, KFACAnchor, L2Anchor
from famr.anchors.kfac import Factors
from famr.data.loaders import loader_batches
from famr.errors import RequestError
from famr.optim.natural import natural_step


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def covariance(size: int, seed: int) -> Tensor:
    rows = random(2 * size, size, seed=seed)
    return rows.T @ rows / len(rows)


@pytest.mark.parametrize("strength", [0.0, 0.7, 50.0])
def test_kfac_preconditioning_solves_with_the_dense_kronecker_product(strength: float) -> None:
    A, G = covariance(4, 1), covariance(3, 2)
    anchor = KFACAnchor([random(3, 3), random(3)], [Factors(0, 1, A, G)], [torch.zeros(3, 3), torch.zeros(3)])
    weight, bias = random(3, 3, seed=3), random(3, seed=4)
    found = anchor.precondition([weight, bias], strength)
    dense = torch.eye(12, dtype=torch.float64) + strength * torch.kron(G, A)  # of a matrix read row by row
    joined = torch.cat([weight, bias[:, None]], dim=1)
    expected = torch.linalg.solve(dense, joined.flatten()).reshape(3, 4)
    torch.testing.assert_close(torch.cat([found[0], found[1][:, None]], dim=1), expected)


def test_layers_of_one_shape_are_solved_together_as_each_is_alone() -> None:
    """And what no layer covers is divided weight by weight."""
    shapes = [(3, 4), (2,), (3, 4), (3,), (5, 4), (3, 4)]  # the fourth is the bias of the third
    gradient = [random(*shape, seed=10 + place) for place, shape in enumerate(shapes)]
    layers = [
        Factors(weight, bias, covariance(4 + (bias is not None), weight), covariance(rows, 20 + weight))
        for weight, bias, rows in ((0, None, 3), (2, 3, 3), (4, None, 5), (5, None, 3))
    ]
    rest = [torch.zeros_like(each) for each in gradient]
    rest[1] = random(2).square()
    found = KFACAnchor(gradient, layers, rest).precondition(gradient, 0.7)
    torch.testing.assert_close(found[1], gradient[1] / (1 + 0.7 * rest[1]))
    for layer in layers:
        columns = [gradient[layer.weight], *([] if layer.bias is None else [gradient[layer.bias][:, None]])]
        dense = torch.eye(len(layer.G) * len(layer.A), dtype=torch.float64) + 0.7 * torch.kron(layer.G, layer.A)
        alone = torch.linalg.solve(dense, torch.cat(columns, dim=1).flatten()).reshape(len(layer.G), len(layer.A))
        torch.testing.assert_close(found[layer.weight], alone[:, : gradient[layer.weight].shape[1]])
        if layer.bias is not None:
            torch.testing.assert_close(found[layer.bias], alone[:, -1])


def test_kfac_preconditioning_of_a_convolution_keeps_its_shape() -> None:
    A, G = covariance(8, 1), covariance(3, 2)
    anchor = KFACAnchor([random(3, 2, 2, 2)], [Factors(0, None, A, G)], [torch.zeros(3, 2, 2, 2)])
    gradient = random(3, 2, 2, 2, seed=5)
    (found,) = anchor.precondition([gradient], 2.0)
    dense = torch.eye(24, dtype=torch.float64) + 2.0 * torch.kron(G, A)
    torch.testing.assert_close(found.flatten(), torch.linalg.solve(dense, gradient.flatten()))


def test_fisher_and_l2_preconditioning_divide_weight_by_weight() -> None:
    gradient, fisher = random(5), random(5, seed=1).square()
    (found,) = FisherAnchor([random(5)], [fisher]).precondition([gradient], 3.0)
    torch.testing.assert_close(found, gradient / (1 + 3.0 * fisher))
    (found,) = L2Anchor([random(5)]).precondition([gradient], 3.0)
    torch.testing.assert_close(found, gradient / 4)


def step(loss_of, start: Tensor, anchors, rate: float) -> Tensor:  # type: ignore[no-untyped-def]
    parameter = nn.Parameter(start.clone())
    loss = loss_of(parameter)
    loss.backward()
    natural_step([parameter], anchors, loss, rate)
    return parameter.detach()


def test_a_whole_step_brings_a_linear_loss_to_zero() -> None:
    slope, start = random(6), random(6, seed=1)

    def loss(w: Tensor) -> Tensor:
        return slope @ w + 100

    fisher = FisherAnchor([start], [random(6, seed=2).square()])
    for strength in (0.0, 10.0):
        assert float(loss(step(loss, start, [AnchorTerm(fisher, strength)], 1.0))) == pytest.approx(0, abs=1e-9)
        assert float(loss(step(loss, start, [AnchorTerm(fisher, strength)], 0.5))) == pytest.approx(
            float(loss(start)) / 2
        )


def test_the_step_does_not_depend_on_the_scale_of_the_loss() -> None:
    """Sum or mean over a batch, it is the same step."""
    start, held = random(6), [AnchorTerm(L2Anchor([random(6)]), 0.0)]
    once = step(lambda w: w.square().sum(), start, held, 0.3)
    again = step(lambda w: 64 * w.square().sum(), start, held, 0.3)
    torch.testing.assert_close(once, again)


def test_directions_that_matter_to_retained_answers_move_less() -> None:
    start, slope = torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    fisher = FisherAnchor([start], [torch.tensor([1.0, 0.0], dtype=torch.float64)])
    moved = step(lambda w: slope @ w + 1, start, [AnchorTerm(fisher, 99.0)], 1.0)
    assert float(moved[0] / moved[1]) == pytest.approx(1 / 100)


def test_a_gradient_of_zero_moves_nothing() -> None:
    start = random(3)
    moved = step(lambda w: (0 * w).sum() + 1, start, [AnchorTerm(L2Anchor([start]), 0.0)], 0.5)
    assert torch.equal(moved, start)


def test_an_anchor_of_answers_alone_gives_no_metric() -> None:
    module = nn.Linear(2, 2)
    answers = FunctionAnchor(module, loader_batches([(torch.ones(1, 2), torch.zeros(1))], torch.device("cpu")), 0)
    with pytest.raises(RequestError, match="anchor of the weights"):
        natural_step(list(module.parameters()), [AnchorTerm(answers, 1.0)], torch.ones(()), 0.5)


def test_the_same_seed_takes_the_same_steps(original: famr.Classifier, without_three: famr.Splits) -> None:
    method = famr.FAMR(strength=10.0, epochs=2)
    first, again = (
        famr.forget(
            original, without_three, method, device="cpu", monitor=famr.Monitor(track_retain=False)
        ).model.digest()
        for _ in range(2)
    )
    assert first == again
