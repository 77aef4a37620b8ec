"""The step in the metric of the anchor, against dense algebra and closed forms."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

import famr
from famr.anchors import AnchorTerm, FisherAnchor, FunctionAnchor, KFACAnchor, L2Anchor
from famr.anchors.statistics import LayerFisher
from famr.engine.plain import PlainSession
from famr.errors import RequestError
from famr.optim.natural import Natural


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def covariance(size: int, seed: int) -> Tensor:
    rows = random(2 * size, size, seed=seed)
    return rows.T @ rows / len(rows)


def layer_fisher(weight: int, bias: int | None, A: Tensor, G: Tensor) -> LayerFisher:
    (a, U), (g, V) = torch.linalg.eigh(A), torch.linalg.eigh(G)
    return LayerFisher(weight, bias, a, U, g, V)


def dense_solution(A: Tensor, G: Tensor, strength: float, matrix: Tensor) -> Tensor:
    """(I + s·G⊗A)⁻¹ of a matrix that is read row by row."""
    dense = torch.eye(matrix.numel(), dtype=torch.float64) + strength * torch.kron(G, A)
    return torch.linalg.solve(dense, matrix.flatten()).reshape(matrix.shape)


@pytest.mark.parametrize("strength", [0.0, 0.7, 50.0])
def test_kfac_preconditioning_solves_with_the_dense_kronecker_product(strength: float) -> None:
    A, G = covariance(4, 1), covariance(3, 2)
    anchor = KFACAnchor([random(3, 3), random(3)], [layer_fisher(0, 1, A, G)], [torch.zeros(3, 3), torch.zeros(3)])
    weight, bias = random(3, 3, seed=3), random(3, seed=4)
    solved_weight, solved_bias = anchor.precondition([weight, bias], strength)
    expected = dense_solution(A, G, strength, torch.cat([weight, bias[:, None]], dim=1))
    torch.testing.assert_close(torch.cat([solved_weight, solved_bias[:, None]], dim=1), expected)


def test_kfac_preconditioning_solves_layer_by_layer_and_divides_what_no_layer_covers() -> None:
    shapes = [(3, 4), (2,), (3, 4), (3,), (5, 4), (3, 4)]  # the fourth is the bias of the third
    gradient = [random(*shape, seed=10 + index) for index, shape in enumerate(shapes)]
    factors = {
        (weight, bias): (covariance(4 + (bias is not None), weight), covariance(rows, 20 + weight))
        for weight, bias, rows in ((0, None, 3), (2, 3, 3), (4, None, 5), (5, None, 3))
    }
    rest = [torch.zeros_like(g) for g in gradient]
    rest[1] = random(2).square()
    layers = [layer_fisher(weight, bias, A, G) for (weight, bias), (A, G) in factors.items()]
    solved = KFACAnchor(gradient, layers, rest).precondition(gradient, 0.7)
    torch.testing.assert_close(solved[1], gradient[1] / (1 + 0.7 * rest[1]))
    for (weight, bias), (A, G) in factors.items():
        columns = [gradient[weight], *([] if bias is None else [gradient[bias][:, None]])]
        expected = dense_solution(A, G, 0.7, torch.cat(columns, dim=1))
        torch.testing.assert_close(solved[weight], expected[:, : gradient[weight].shape[1]])
        if bias is not None:
            torch.testing.assert_close(solved[bias], expected[:, -1])


def test_kfac_preconditioning_of_a_convolution_keeps_its_shape() -> None:
    A, G = covariance(8, 1), covariance(3, 2)
    anchor = KFACAnchor([random(3, 2, 2, 2)], [layer_fisher(0, None, A, G)], [torch.zeros(3, 2, 2, 2)])
    gradient = random(3, 2, 2, 2, seed=5)
    (solved,) = anchor.precondition([gradient], 2.0)
    assert solved.shape == gradient.shape
    torch.testing.assert_close(solved.flatten(1), dense_solution(A, G, 2.0, gradient.flatten(1)))


def test_fisher_and_l2_preconditioning_divide_weight_by_weight() -> None:
    gradient, fisher = random(5), random(5, seed=1).square()
    (solved,) = FisherAnchor([random(5)], [fisher]).precondition([gradient], 3.0)
    torch.testing.assert_close(solved, gradient / (1 + 3.0 * fisher))
    (solved,) = L2Anchor([random(5)]).precondition([gradient], 3.0)
    torch.testing.assert_close(solved, gradient / 4)


def step(loss_of: Callable[[Tensor], Tensor], start: Tensor, anchors: Sequence[AnchorTerm], rate: float) -> Tensor:
    """θ after one step from `start`."""
    parameter = nn.Parameter(start.clone())
    loss = loss_of(parameter)
    update = Natural([parameter], anchors)
    update.set_rate(rate)
    update.step(loss.detach(), torch.autograd.grad(loss, [parameter]))
    return parameter.detach()


def test_a_whole_step_brings_a_linear_loss_to_zero() -> None:
    slope, start = random(6), random(6, seed=1)

    def loss(w: Tensor) -> Tensor:
        return slope @ w + 100

    fisher = FisherAnchor([start], [random(6, seed=2).square()])
    for strength in (0.0, 10.0):
        assert float(loss(step(loss, start, [AnchorTerm(fisher, strength)], 1.0))) == pytest.approx(0, abs=1e-9)
        half = step(loss, start, [AnchorTerm(fisher, strength)], 0.5)
        assert float(loss(half)) == pytest.approx(float(loss(start)) / 2)


def test_the_step_does_not_depend_on_the_scale_of_the_loss() -> None:
    """Sum or mean over a batch, it is the same step."""
    start, anchors = random(6), [AnchorTerm(L2Anchor([random(6)]), 0.0)]
    mean = step(lambda w: w.square().sum(), start, anchors, 0.3)
    total = step(lambda w: 64 * w.square().sum(), start, anchors, 0.3)
    torch.testing.assert_close(mean, total)


def test_directions_on_which_retained_predictions_depend_move_less() -> None:
    start, slope = torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    fisher = FisherAnchor([start], [torch.tensor([1.0, 0.0], dtype=torch.float64)])
    moved = step(lambda w: slope @ w + 1, start, [AnchorTerm(fisher, 99.0)], 1.0)
    assert float(moved[0] / moved[1]) == pytest.approx(1 / 100)


def test_a_gradient_of_zero_moves_nothing() -> None:
    start = random(3)
    moved = step(lambda w: (0 * w).sum() + 1, start, [AnchorTerm(L2Anchor([start]), 0.0)], 0.5)
    assert torch.equal(moved, start)


def test_further_anchors_are_penalties_of_the_step() -> None:
    """The gradient that is preconditioned includes theirs."""
    start, slope, other = random(4), random(4, seed=1), L2Anchor([random(4, seed=2)])
    metric = FisherAnchor([start], [random(4, seed=3).square()])
    moved = step(lambda w: slope @ w + 9, start, [AnchorTerm(metric, 2.0), AnchorTerm(other, 0.5)], 0.25)
    g = slope + 0.5 * (start - other.original[0])
    direction = g / (1 + 2.0 * metric.fisher[0])
    torch.testing.assert_close(moved, start - 0.25 * (slope @ start + 9) / (g @ direction) * direction)


def test_the_function_space_anchor_alone_gives_no_metric() -> None:
    session = PlainSession(famr.Classifier(nn.Linear(2, 2)), torch.device("cpu"), "fp32", None)
    anchor = FunctionAnchor(session, session.loader_batches([(torch.ones(1, 2), torch.zeros(1))]), seed=0)
    with pytest.raises(RequestError, match="anchor of the weights"):
        Natural(session.parameters, [AnchorTerm(anchor, 1.0)])


def test_the_same_seed_takes_the_same_steps(original: famr.Classifier, without_three: famr.Splits) -> None:
    method = famr.FAMR(strength=10.0, epochs=2)
    first, again = (
        famr.forget(
            original, without_three, method, device="cpu", monitor=famr.Monitor(track_retain=False)
        ).model.digest()
        for _ in range(2)
    )
    assert first == again
