"""Products, solutions and eigenvalues against dense matrices, and products against curvlinops."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import timm
import torch
from scipy.sparse.linalg import eigsh
from torch import Tensor, nn

from famr.certificates.conjugate_gradient import conjugate_gradient, solve_damped
from famr.certificates.curvature import flat, gauss_newton_product, gradient, hessian_product, shaped
from famr.certificates.lanczos import Spectrum, extreme_eigenvalues
from famr.certificates.lipschitz import local_lipschitz
from famr.errors import NumericsError
from famr.losses.objective import target_kl


@pytest.fixture
def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()


@pytest.fixture
def batches() -> list[Tensor]:
    draws = torch.Generator().manual_seed(1)
    return [torch.randn(5, 4, generator=draws, dtype=torch.float64) for _ in range(3)]


TARGET = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)


def loss_of(module: nn.Module, images: Tensor) -> Tensor:
    return target_kl(module(images), TARGET).sum()


def dense_hessian(module: nn.Module, batches: list[Tensor]) -> Tensor:
    """By torch's own Hessian of a function of one flat vector."""
    parameters = dict(module.named_parameters())
    names, like = list(parameters), list(parameters.values())

    def total(vector: Tensor) -> Tensor:
        weights = dict(zip(names, shaped(vector, like), strict=True))
        outputs = torch.func.functional_call(module, weights, (torch.cat(batches),))
        return target_kl(outputs, TARGET).sum()

    hessian: Tensor = torch.autograd.functional.hessian(total, flat(like))  # type: ignore[no-untyped-call]
    return hessian


def dense(product, size: int) -> Tensor:  # type: ignore[no-untyped-def]
    return torch.stack([product(unit) for unit in torch.eye(size, dtype=torch.float64)], dim=1)


def test_hessian_products_are_those_of_the_dense_hessian(mlp: nn.Module, batches: list[Tensor]) -> None:
    parameters = list(mlp.parameters())
    product = hessian_product(lambda: (loss_of(mlp, images) for images in batches), parameters)
    expected = dense_hessian(mlp, batches)
    assert torch.allclose(dense(product, len(expected)), expected, atol=1e-10)


def test_gauss_newton_is_jacobian_softmax_curvature_jacobian(mlp: nn.Module, batches: list[Tensor]) -> None:
    parameters = list(mlp.parameters())

    def losses() -> Iterator[tuple[Tensor, Tensor]]:
        for images in batches:
            logits = mlp(images)
            yield logits, target_kl(logits, TARGET).sum()

    slow = torch.zeros(51, 51, dtype=torch.float64)
    for image in torch.cat(batches):
        logits = mlp(image[None])[0]
        rows = [flat(torch.autograd.grad(z, parameters, retain_graph=True)) for z in logits]
        jacobian, p = torch.stack(rows), torch.softmax(logits.detach(), dim=-1)
        slow += jacobian.T @ (torch.diag(p) - torch.outer(p, p)) @ jacobian
    assert torch.allclose(dense(gauss_newton_product(losses, parameters), 51), slow, atol=1e-10)


class SummedKL(nn.Module):
    """KL to a target of each image, as a loss of curvlinops."""

    reduction = "sum"

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        return target_kl(logits, targets).sum()


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:FutureWarning")  # curvlinops uses it
@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(reduction="sum"), SummedKL()])
def test_products_agree_with_curvlinops(mlp: nn.Module, batches: list[Tensor], loss: nn.Module) -> None:
    import curvlinops

    parameters, draws = list(mlp.parameters()), torch.Generator().manual_seed(2)
    targets = [torch.randn(5, 3, dtype=torch.float64, generator=draws).softmax(dim=-1) for _ in batches]
    data = list(zip(batches, targets, strict=True))

    def losses() -> Iterator[tuple[Tensor, Tensor]]:
        for images, target in data:
            logits = mlp(images)
            yield logits, loss(logits, target)

    vector = torch.randn(51, dtype=torch.float64, generator=draws)
    for theirs, product in (
        (curvlinops.HessianLinearOperator, hessian_product(lambda: (value for _, value in losses()), parameters)),
        (curvlinops.GGNLinearOperator, gauss_newton_product(losses, parameters)),
    ):
        expected = theirs(mlp, loss, parameters, data) @ vector
        assert torch.allclose(product(vector), expected, atol=1e-8)


def test_attention_can_be_differentiated_twice() -> None:
    torch.manual_seed(0)
    vit = timm.create_model(
        "vit_tiny_patch16_224", img_size=16, patch_size=8, embed_dim=12, depth=1, num_heads=2, num_classes=3
    ).double()
    vit.eval()
    images = torch.randn(2, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    parameters = list(vit.parameters())
    losses = lambda: [target_kl(vit(images), TARGET).sum()]  # noqa: E731
    vector = torch.randn(flat(parameters).shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    image = hessian_product(losses, parameters)(vector)
    step = 1e-6
    gradients = []
    for sign in (1, -1):
        with torch.no_grad():
            for parameter, part in zip(parameters, shaped(vector, parameters), strict=True):
                parameter.add_(part, alpha=sign * step)
        gradients.append(gradient(losses, parameters))
        with torch.no_grad():
            for parameter, part in zip(parameters, shaped(vector, parameters), strict=True):
                parameter.sub_(part, alpha=sign * step)
    central = (gradients[0] - gradients[1]) / (2 * step)
    assert float((image - central).norm() / central.norm()) < 1e-6


def positive(size: int = 20) -> Tensor:
    root = torch.randn(size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    return root @ root.T / size + 0.1 * torch.eye(size, dtype=torch.float64)


def test_conjugate_gradients_solve_and_report_their_residual() -> None:
    matrix, b = positive(), torch.ones(20, dtype=torch.float64)
    solution = conjugate_gradient(lambda v: matrix @ v, b, damping=0.5, tolerance=1e-10)
    damped = matrix + 0.5 * torch.eye(20, dtype=torch.float64)
    assert solution.converged
    assert torch.allclose(solution.x, torch.linalg.solve(damped, b), atol=1e-8)
    stopped = conjugate_gradient(lambda v: matrix @ v, b, tolerance=1e-10, steps=2)
    assert not stopped.converged
    assert stopped.residual == pytest.approx(float((b - matrix @ stopped.x).norm() / b.norm()))


def test_conjugate_gradients_stop_at_negative_curvature() -> None:
    matrix = torch.diag(torch.tensor([1.0, -3.0], dtype=torch.float64))
    b = torch.ones(2, dtype=torch.float64)
    assert conjugate_gradient(lambda v: matrix @ v, b).negative_curvature
    damped = solve_damped(lambda v: matrix @ v, b, damping=0.5, tolerance=1e-8)
    assert damped.damping == 5.0  # 0.5 is too little for −3, ten times as much is enough
    assert torch.allclose(damped.x, torch.tensor([1 / 6, 1 / 2], dtype=torch.float64))
    with pytest.raises(NumericsError, match="did not converge"):
        solve_damped(lambda v: -1e9 * v, b, damping=1e-3)


def spectrum_of(matrix: Tensor, steps: int) -> Spectrum:
    return extreme_eigenvalues(lambda v: matrix @ v, len(matrix), steps=steps, like=matrix)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_extreme_eigenvalues_are_those_of_scipy_and_of_the_dense_matrix(dtype: torch.dtype) -> None:
    matrix = positive(200) - 0.05 * torch.ones(200, 200, dtype=torch.float64)  # one eigenvalue far below 0
    values = torch.linalg.eigvalsh(matrix)
    spectrum = spectrum_of(matrix.to(dtype), steps=60)
    assert not spectrum.exact
    for expected in ((values[0], values[-1]), eigsh(matrix.numpy(), k=2, which="BE", return_eigenvectors=False)):
        assert (spectrum.smallest, spectrum.largest) == pytest.approx(tuple(map(float, expected)), abs=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("steps", [1, 2, 8, 30, 150])
def test_an_eigenvalue_lies_within_the_error_of_each_end(steps: int, dtype: torch.dtype) -> None:
    matrix = (positive(200) - torch.eye(200, dtype=torch.float64)).to(dtype)
    values = torch.linalg.eigvalsh(matrix.double())
    spectrum = spectrum_of(matrix, steps)
    slack = 10 * torch.finfo(dtype).eps * float(values.abs().max())  # the reference rounds too
    for value, error in ((spectrum.smallest, spectrum.smallest_error), (spectrum.largest, spectrum.largest_error)):
        assert float((values - value).abs().min()) <= error + slack
    assert float(values[0]) - slack <= spectrum.smallest <= spectrum.largest <= float(values[-1]) + slack
    assert spectrum.steps == steps


def test_errors_of_eigenvalues_are_not_below_the_precision_of_the_products() -> None:
    spectrum = spectrum_of(positive(200).float(), steps=150)
    assert 1e-8 < spectrum.largest_error < 1e-5


def test_a_krylov_space_that_the_matrix_maps_to_itself_is_exact() -> None:
    matrix = torch.diag(torch.tensor([1.0, 1.0, 4.0, 4.0, 4.0], dtype=torch.float64))
    spectrum = spectrum_of(matrix, steps=5)
    assert (spectrum.steps, spectrum.exact) == (2, True)
    assert (spectrum.smallest, spectrum.largest) == (pytest.approx(1.0), pytest.approx(4.0))
    assert spectrum_of(torch.zeros(5, 5), steps=5).largest == 0


def test_eigenvalues_are_the_same_in_every_call() -> None:
    assert spectrum_of(positive(50), steps=8) == spectrum_of(positive(50), steps=8)


def test_a_matrix_that_is_not_finite_has_no_eigenvalues() -> None:
    with pytest.raises(NumericsError, match="not finite"):
        spectrum_of(torch.full((50, 50), torch.nan), steps=8)


def test_the_local_lipschitz_constant_is_the_jacobians_largest_singular_value(mlp: nn.Module) -> None:
    image = torch.randn(1, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    parameters = list(mlp.parameters())
    rows = [flat(torch.autograd.grad(z, parameters, retain_graph=True)) for z in mlp(image)[0]]
    exact = float(torch.linalg.svdvals(torch.stack(rows))[0])
    assert local_lipschitz(lambda: mlp(image), parameters) == pytest.approx(exact, rel=1e-6)
    by_iteration = local_lipschitz(lambda: mlp(image), parameters, memory=0)
    assert by_iteration == pytest.approx(exact, rel=1e-3)
    assert by_iteration <= exact * (1 + 1e-6)
