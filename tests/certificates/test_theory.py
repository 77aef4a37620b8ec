"""The paper's theorems, on a linear softmax model where they hold exactly."""

from __future__ import annotations

from itertools import pairwise

import pytest
import scipy.optimize
import torch
from torch import Tensor, nn

import famr
from conftest import alg1
from famr.certificates.curvature import flat
from famr.config import ResolvedFAMR
from famr.engine.plain import PlainEngine
from famr.losses.objective import target_kl, uniform_target
from famr.unlearn.inputs import RunInputs
from famr.unlearn.loop import Epoch, minimise
from famr.unlearn.problem import build_problem

STRENGTH = 0.5


def solve(module: nn.Module, inputs: Tensor, strength: float) -> tuple[Tensor, Tensor]:
    """θ₀ and the exact minimiser θ* of J, flat, by another library's trust-region Newton method."""
    shapes = [parameter.shape for parameter in module.parameters()]
    start = torch.cat([parameter.detach().flatten() for parameter in module.parameters()])

    def objective(theta: Tensor) -> Tensor:
        weight, bias = (
            part.view(shape)
            for part, shape in zip(theta.split([shape.numel() for shape in shapes]), shapes, strict=True)
        )
        kl = target_kl(inputs @ weight.T + bias, uniform_target(4)).sum()
        return kl + strength / 2 * (theta - start).square().sum()

    solution = scipy.optimize.minimize(
        lambda x: float(objective(torch.tensor(x))),
        start.numpy(),
        method="trust-exact",
        jac=lambda x: torch.func.grad(objective)(torch.tensor(x)).numpy(),
        hess=lambda x: torch.autograd.functional.hessian(objective, torch.tensor(x)).numpy(),
        options={"gtol": 1e-9},
    )
    assert float(torch.func.grad(objective)(torch.tensor(solution.x)).norm()) < 1e-6
    return start, torch.tensor(solution.x)


def largest_curvature(module: nn.Module, inputs: Tensor) -> float:
    """L: ∇²KL ≼ ½·Σ x̃x̃ᵀ for every θ, as softmax has covariance ≼ ½ I."""
    homogeneous = torch.cat([inputs, torch.ones(len(inputs), 1, dtype=inputs.dtype)], dim=1)
    return 0.5 * float(torch.linalg.eigvalsh(homogeneous.T @ homogeneous)[-1])


def path(module: nn.Module, inputs: Tensor, strength: float, rate: float, epochs: int) -> list[Tensor]:
    """Every iterate of Alg. 1, flat, with the whole forget set in one batch."""
    method = alg1(strength=strength, learning_rate=rate, epochs=epochs)
    original = famr.Classifier(module)
    run_inputs = RunInputs.of(original, None, [(inputs, torch.zeros(len(inputs), dtype=torch.long))])
    config = ResolvedFAMR.from_json(method.to_json())
    with (
        PlainEngine(torch.device("cpu")).session(original, "fp32") as session,
        build_problem(session, run_inputs, config, seed=0) as problem,
    ):
        steps = minimise(problem, seed=0, start=Epoch(0, 0, 0.0))
        return [flat(session.parameters), *(flat(session.parameters) for _ in steps)]


def test_linear_model_converges_at_the_rate_of_theorem_1(linear: tuple[nn.Module, Tensor]) -> None:
    module, inputs = linear
    _, exact = solve(module, inputs, STRENGTH)
    rate = 1 / (largest_curvature(module, inputs) + STRENGTH)
    iterates = path(module, inputs, STRENGTH, rate, epochs=200)
    first = float((iterates[0] - exact).norm())
    for step, theta in enumerate(iterates):
        assert float((theta - exact).norm()) <= (1 - rate * STRENGTH) ** step * first * (1 + 1e-9) + 1e-8


def test_a_rate_larger_than_that_of_the_theorem_breaks_its_bound(linear: tuple[nn.Module, Tensor]) -> None:
    module, inputs = linear
    _, exact = solve(module, inputs, STRENGTH)
    rate = 40 / (largest_curvature(module, inputs) + STRENGTH)
    iterates = path(module, inputs, STRENGTH, rate, epochs=20)
    assert float((iterates[-1] - exact).norm()) > (1 - rate * STRENGTH) ** 20 * float((iterates[0] - exact).norm())


def test_linear_model_reaches_the_stationarity_of_equation_6(linear: tuple[nn.Module, Tensor]) -> None:
    module, inputs = linear
    start, exact = solve(module, inputs, STRENGTH)
    rate = 1 / (largest_curvature(module, inputs) + STRENGTH)
    reached = path(module, inputs, STRENGTH, rate, epochs=2000)[-1]
    torch.nn.utils.vector_to_parameters(reached, module.parameters())
    target_kl(module(inputs), uniform_target(4)).sum().backward()
    forget = torch.cat([parameter.grad.flatten() for parameter in module.parameters() if parameter.grad is not None])
    assert float((forget + STRENGTH * (reached - start)).norm()) < 1e-6
    assert float((reached - exact).norm()) < 1e-6


def test_strong_anchor_returns_the_original_model(linear: tuple[nn.Module, Tensor]) -> None:
    module, inputs = linear
    drifts = []
    for strength in (1e1, 1e3, 1e5, 1e7):
        start, exact = solve(module, inputs, strength)
        drifts.append(float((exact - start).norm()))
    assert drifts[-1] < 1e-5
    for weaker, stronger in pairwise(drifts[1:]):  # far out, the drift falls like 1/λ
        assert stronger == pytest.approx(weaker / 100, rel=0.05)


def test_strong_anchor_returns_the_original_predictions_of_a_vit(
    original: famr.Classifier, without_three: famr.Splits
) -> None:
    method = alg1(strength=1e6, learning_rate=1e-7, epochs=3)
    anchored = famr.forget(original, without_three, method, device="cpu")
    free = famr.forget(original, without_three, alg1(strength=0, learning_rate=1e-4, epochs=3), device="cpu")
    assert anchored.history[-1].forget_kl < 1e-4
    assert anchored.drift < 1e-3 < free.drift


@pytest.mark.parametrize("optimiser", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("strength", [0.1, 10.0])
def test_drift_stays_within_the_bound_of_proposition_1(
    original: famr.Classifier, without_three: famr.Splits, optimiser: str, reduction: str, strength: float
) -> None:
    method = alg1(
        **{
            "optimiser": optimiser,
            "reduction": reduction,
            "strength": strength,
            "learning_rate": 1e-4 if optimiser == "sgd" else 1e-5,
            "epochs": 3,
        }
    )
    result = famr.forget(original, without_three, method, device="cpu", monitor=famr.Monitor(track_retain=False))
    for row in result.history[1:]:
        assert row.loss_total <= result.history[0].loss_total
        bound = (2 * (result.history[0].loss_forget - row.loss_forget) / strength) ** 0.5
        assert 0 < row.drift <= bound
    assert result.drift_bound is not None
    assert result.drift <= result.drift_bound


def test_no_drift_bound_is_given_where_the_objective_increased(
    original: famr.Classifier, without_three: famr.Splits
) -> None:
    wild = alg1(learning_rate=0.05, strength=1e3, epochs=1, batch_size=146)
    result = famr.forget(original, without_three, wild, device="cpu", monitor=famr.Monitor(track_retain=False))
    assert result.history[-1].loss_total > result.history[0].loss_total
    assert result.drift_bound is None
