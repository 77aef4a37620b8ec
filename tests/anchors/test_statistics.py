"""Fisher information against slow loops and closed forms."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import famr
from famr.anchors import statistics
from famr.anchors.statistics import LayerFisher, fisher_diagonal, kfac_statistics
from famr.data.loaders import Batch
from famr.errors import NumericsError
from famr.models.classifier import logits_of


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(2)
        return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(48, 4)).eval()


def images(count: int = 5) -> Tensor:
    return torch.randn(count, 1, 6, 6, generator=torch.Generator().manual_seed(3))


def batch(inputs: Tensor) -> Batch:
    return Batch(inputs, torch.zeros(len(inputs), dtype=torch.long), torch.arange(len(inputs)))


def dense_factors(layer: LayerFisher) -> tuple[Tensor, Tensor]:
    """A and G from their eigenvectors."""
    return layer.U @ torch.diag(layer.a) @ layer.U.T, layer.V @ torch.diag(layer.g) @ layer.V.T


def drawn_label(log_p: Tensor, uniform: Tensor) -> Tensor:
    """The label at which the running sum of probabilities passes `uniform`."""
    running = 0.0
    for label, p in enumerate(log_p.exp().tolist()):
        running += p
        if running >= float(uniform):
            return torch.tensor(label)
    return torch.tensor(len(log_p) - 1)


def slow_fisher(module: nn.Module, inputs: Tensor, seed: int) -> list[Tensor]:
    """One image, one backward pass, one square at a time, with the same draws."""
    uniform = torch.rand(len(inputs), generator=torch.Generator().manual_seed(seed))
    total = [torch.zeros_like(parameter) for parameter in module.parameters()]
    for image, u in zip(inputs, uniform, strict=True):
        log_p = torch.log_softmax(module(image[None])[0], dim=-1)
        gradients = torch.autograd.grad(log_p[drawn_label(log_p.detach(), u)], list(module.parameters()))
        total = [t + g.square() for t, g in zip(total, gradients, strict=True)]
    return [t / len(inputs) for t in total]


def test_the_diagonal_agrees_with_a_loop_over_images_of_a_cnn() -> None:
    module, inputs = network(), images()
    diagonal = fisher_diagonal(module, logits_of, [batch(inputs)], torch.Generator().manual_seed(9))
    for ours, theirs in zip(diagonal, slow_fisher(module, inputs, 9), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-7)


def test_the_diagonal_agrees_with_a_loop_over_images_of_a_vit(original: famr.Classifier) -> None:
    inputs = torch.randn(4, 3, 12, 12, generator=torch.Generator().manual_seed(3))
    module = original.module
    diagonal = fisher_diagonal(module, logits_of, [batch(inputs)], torch.Generator().manual_seed(9))
    for ours, theirs in zip(diagonal, slow_fisher(module, inputs, 9), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-7)


def test_the_diagonal_of_a_linear_model_tends_to_its_closed_form() -> None:
    """∂log p(y)/∂W = (e_y − p)xᵀ, so F_W = E_x diag(p(1 − p)) x²."""
    module = nn.Linear(3, 4).double()
    inputs = torch.randn(3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    many = inputs.repeat(4000, 1)
    weight, bias = fisher_diagonal(module, logits_of, [batch(many)], torch.Generator().manual_seed(0))
    p = torch.softmax(module(inputs).detach(), dim=-1)
    spread = p * (1 - p)
    torch.testing.assert_close(
        weight, (spread[:, :, None] * inputs.square()[:, None, :]).mean(dim=0), rtol=0.1, atol=0.01
    )
    torch.testing.assert_close(bias, spread.mean(dim=0), rtol=0.1, atol=0.01)


def test_statistics_leave_the_network_as_it_was(original: famr.Classifier) -> None:
    before = original.digest()
    inputs = [batch(torch.randn(2, 3, 12, 12))]
    fisher_diagonal(original.module, logits_of, inputs, torch.Generator())
    kfac_statistics(original.module, logits_of, inputs, torch.Generator())
    assert original.digest() == before
    assert all(parameter.grad is None for parameter in original.module.parameters())
    assert not any(part._forward_hooks for part in original.module.modules())


def test_factors_of_a_convolution_agree_with_loops_over_positions() -> None:
    module = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1, stride=2), nn.Flatten(), nn.Linear(27, 4, bias=False))
    inputs = images(5)
    layers, _ = kfac_statistics(module, logits_of, [batch(inputs)], torch.Generator().manual_seed(9))
    by_weight = {layer.weight: layer for layer in layers}
    uniform = torch.rand(5, generator=torch.Generator().manual_seed(9))
    convolved = module[0](inputs)
    log_p = torch.log_softmax(module[1:](convolved), dim=-1)
    drawn = torch.stack([drawn_label(row, u) for row, u in zip(log_p.detach(), uniform, strict=True)])
    (gradient,) = torch.autograd.grad(log_p.gather(1, drawn[:, None]).sum(), convolved)
    padded = nn.functional.pad(inputs, (1, 1, 1, 1))
    A, G = torch.zeros(10, 10), torch.zeros(3, 3)
    for image in range(5):
        for row in range(3):
            for column in range(3):
                patch = padded[image, :, 2 * row : 2 * row + 3, 2 * column : 2 * column + 3].flatten()
                extended = torch.cat([patch, torch.ones(1)])
                A += torch.outer(extended, extended) / (5 * 9)
                G += torch.outer(gradient[image, :, row, column], gradient[image, :, row, column]) / 5
    ours = dense_factors(by_weight[0])
    torch.testing.assert_close(ours[0], A, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours[1], G, rtol=1e-4, atol=1e-5)
    assert by_weight[2].bias is None


class Twice(nn.Module):
    """A normalisation of tokens that is used twice, one of rows, and one over another dimension than the last."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.rows, self.first = nn.LayerNorm(6), nn.LayerNorm(6), Channels(6)
        self.one, self.other = nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.tokens(self.one(self.tokens(self.first(x))))
        out: Tensor = self.other(self.rows(x.mean(1)))
        return out


class Channels(nn.LayerNorm):
    """As convolutional networks have it: (images, channels, positions)."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.mT).mT


def test_layer_normalisations_get_their_diagonal_in_the_pass_over_the_layers() -> None:
    torch.manual_seed(0)
    module, inputs = Twice(), torch.randn(5, 6, 6)  # as many positions as channels
    for parameter in module.parameters():
        parameter.data.add_(0.3 * torch.randn_like(parameter))
    expected = dict(zip(dict(module.named_parameters()), slow_fisher(module, inputs, 9), strict=True))
    names = list(expected)
    layers, norms = kfac_statistics(module, logits_of, [batch(inputs)], torch.Generator().manual_seed(9))
    parts = {f"{norm}.{part}" for norm in ("tokens", "rows") for part in ("weight", "bias")}
    assert {names[index] for index in norms} == parts
    for index, diagonal in norms.items():
        torch.testing.assert_close(diagonal, expected[names[index]])
    assert {names[layer.weight] for layer in layers} == {"one.weight", "other.weight"}
    module.tokens.bias.requires_grad_(False)  # half of it may change: it is left to per-image gradients
    assert len(kfac_statistics(module, logits_of, [batch(inputs)], torch.Generator()).norms) == 2


@pytest.mark.parametrize("failures", [0, 1, 2])
def test_eigenvectors_that_lapack_does_not_find_are_found_with_a_ridge(
    failures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LAPACK gives up on some matrices of low rank, as those of a DenseNet with many dead inputs."""
    rows = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    matrix, calls, usual = rows.T @ rows, [], torch.linalg.eigh

    def failing(given: Tensor) -> object:
        calls.append(1)
        if len(calls) <= failures:
            raise torch.linalg.LinAlgError("failed to converge")
        return usual(given)

    monkeypatch.setattr(torch.linalg, "eigh", failing)
    values, vectors = statistics._eigh(matrix)
    assert len(calls) == failures + 1
    torch.testing.assert_close(vectors @ torch.diag(values) @ vectors.T, matrix, rtol=0, atol=1e-5)


def test_eigenvectors_that_cannot_be_found_are_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(given: Tensor) -> object:
        raise torch.linalg.LinAlgError("failed to converge")

    monkeypatch.setattr(torch.linalg, "eigh", never)
    with pytest.raises(NumericsError, match="eigenvectors") as caught:
        statistics._eigh(torch.eye(4))
    assert "--anchor" in str(caught.value)
