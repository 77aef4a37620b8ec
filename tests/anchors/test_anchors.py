"""Anchors: penalties, gradients, and the Fisher information against slow loops and closed forms."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from famr.anchors.choose import starting_weights
from torch import Tensor, nn

import famr
from conftest import alg1
from famr.anchors import FisherAnchor, FunctionAnchor, KFACAnchor, L2Anchor, choose, kfac
from famr.anchors.fisher import fisher_diagonal
from famr.anchors.kfac import kfac_factors
from famr.data import Data
from famr.data.loaders import Batch, loader_batches, order
from famr.data.splits import sample_per_class
from famr.errors import NumericsError, RequestError
from famr.metrics.forgetting import kl_divergence
from famr.models.classifier import logits_of

CPU = torch.device("cpu")


def moved(module: nn.Module) -> list[Tensor]:
    """θ₀; the module itself is pushed away from it."""
    start = [parameter.detach().clone() for parameter in module.parameters()]
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    return start


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(2)
        return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(48, 4)).eval()


def images(count: int = 5) -> Tensor:
    return torch.randn(count, 1, 6, 6, generator=torch.Generator().manual_seed(3))


def batch(inputs: Tensor) -> Batch:
    return Batch(inputs, torch.zeros(len(inputs), dtype=torch.long), torch.arange(len(inputs)))


def drawn_labels(log_p: Tensor, uniform: Tensor) -> Tensor:
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
        gradients = torch.autograd.grad(log_p[drawn_labels(log_p.detach(), u)], list(module.parameters()))
        total = [t + g.square() for t, g in zip(total, gradients, strict=True)]
    return [t / len(inputs) for t in total]


def test_fisher_agrees_with_a_loop_over_images_of_a_cnn() -> None:
    module, inputs = network(), images()
    found = fisher_diagonal(module, logits_of, [batch(inputs)], torch.Generator().manual_seed(9))
    for ours, theirs in zip(found, slow_fisher(module, inputs, 9), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-7)


def test_fisher_agrees_with_a_loop_over_images_of_a_vit(original: famr.Classifier) -> None:
    inputs = torch.randn(4, 3, 12, 12, generator=torch.Generator().manual_seed(3))
    module = original.module
    found = fisher_diagonal(module, logits_of, [batch(inputs)], torch.Generator().manual_seed(9))
    for ours, theirs in zip(found, slow_fisher(module, inputs, 9), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-7)


def test_fisher_of_a_linear_model_tends_to_its_closed_form() -> None:
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


def test_fisher_leaves_the_network_as_it_was(original: famr.Classifier) -> None:
    before = original.digest()
    fisher_diagonal(original.module, logits_of, [batch(torch.randn(2, 3, 12, 12))], torch.Generator())
    assert original.digest() == before
    assert all(parameter.grad is None for parameter in original.module.parameters())


@pytest.mark.parametrize("kind", ["l2", "fisher"])
def test_gradient_of_a_weight_anchor_is_the_derivative_of_its_penalty(kind: str) -> None:
    module = network()
    start = moved(module)
    fisher = [torch.rand_like(parameter) for parameter in start]
    anchor = L2Anchor(start) if kind == "l2" else FisherAnchor(start, fisher)
    weights = [torch.ones_like(f) if kind == "l2" else f for f in fisher]
    together = zip(module.parameters(), start, weights, strict=True)
    penalty = 0.5 * sum((w * (p - p0).square()).sum() for p, p0, w in together)
    assert isinstance(penalty, Tensor)
    torch.testing.assert_close(anchor.penalty(list(module.parameters())), penalty.detach())
    for ours, theirs in zip(
        anchor.gradient(list(module.parameters())), torch.autograd.grad(penalty, list(module.parameters())), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def test_function_anchor_is_the_mean_kl_to_the_original_and_zero_at_it() -> None:
    module, inputs = network(), images(8)
    anchor = FunctionAnchor(module, loader_batches([(inputs, torch.zeros(8))], CPU), seed=0)
    parameters = list(module.parameters())
    assert float(anchor.penalty(parameters)) == pytest.approx(0, abs=1e-6)
    before = module(inputs).detach()
    moved(module)
    expected = kl_divergence(before, module(inputs)).mean()
    torch.testing.assert_close(anchor.penalty(parameters), expected.detach())
    for ours, theirs in zip(anchor.gradient(parameters), torch.autograd.grad(expected, parameters), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_function_anchor_goes_round_all_its_images() -> None:
    module, inputs = network(), images(6)
    seen: list[float] = []

    def spy(batch_images: Tensor) -> Tensor:
        seen.extend(batch_images[:, 0, 0, 0].tolist())
        return module(batch_images)  # type: ignore[no-any-return]

    pairs = [(one[None], torch.zeros(1)) for one in inputs]
    anchor = FunctionAnchor(spy, loader_batches(pairs, CPU), seed=0)
    seen.clear()
    for _ in range(12):
        anchor.draw()
        anchor.gradient(list(module.parameters()))
    assert sorted(seen[:6]) == sorted(seen[6:]) == sorted(inputs[:, 0, 0, 0].tolist())
    assert seen[:6] != seen[6:]


def test_function_anchor_leaves_what_is_over_in_a_round_for_another() -> None:
    """Steps of one size are captured once; those that are left over are others each time."""
    module, inputs = network(), images(7)
    drawn: list[list[float]] = []

    def spy(batch_images: Tensor) -> Tensor:
        drawn.append(sorted(batch_images[:, 0, 0, 0].tolist()))
        return module(batch_images)  # type: ignore[no-any-return]

    def rounds(seed: int | None) -> Iterator[Batch]:
        for positions in torch.split(order(7, seed), 3):
            yield Batch(inputs[positions], torch.zeros(len(positions)), positions)

    anchor = FunctionAnchor(spy, rounds, seed=0)
    assert [len(each) for each in drawn] == [3, 3, 1]  # what the original says is known of all
    drawn.clear()
    for _ in range(40):
        assert anchor.draw() == 3
        anchor.gradient(list(module.parameters()))
    in_rounds = [first + second for first, second in zip(drawn[::2], drawn[1::2], strict=True)]
    assert all(len(set(each)) == 6 for each in in_rounds)
    assert {value for each in in_rounds for value in each} == set(inputs[:, 0, 0, 0].tolist())


def test_kfac_of_a_linear_model_and_one_input_is_its_exact_fisher() -> None:
    """With one input x the Fisher information of W is (diag p − ppᵀ) ⊗ x̃x̃ᵀ, a Kronecker product already."""
    module = nn.Linear(3, 4).double()
    one = torch.randn(1, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    (layer,), _ = kfac_factors(module, logits_of, [batch(one.repeat(20_000, 1))], torch.Generator().manual_seed(0))
    p = torch.softmax(module(one).detach(), dim=-1)[0]
    extended = torch.cat([one[0], torch.ones(1, dtype=torch.float64)])
    torch.testing.assert_close(layer.A, torch.outer(extended, extended))
    torch.testing.assert_close(layer.G, torch.diag(p) - torch.outer(p, p), atol=0.01, rtol=0)
    start = moved(module)
    anchor = KFACAnchor(start, [layer], [torch.zeros_like(p0) for p0 in start])
    weight, bias = (p.detach() - p0 for p, p0 in zip(module.parameters(), start, strict=True))
    change = weight @ one[0] + bias  # what the move does to the logits
    exact = 0.5 * change @ (torch.diag(p) - torch.outer(p, p)) @ change
    assert float(anchor.penalty(list(module.parameters()))) == pytest.approx(float(exact), rel=0.05)


def test_kfac_holds_a_network_of_linear_layers_alone() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    pairs = [(torch.randn(6, 3, 2, 2), torch.arange(6) % 3)]
    method = alg1(anchor="kfac", learning_rate=1e-2, epochs=1)
    result = famr.forget(module, forget=pairs, anchor_images=pairs, method=method)
    assert result.history[-1].loss_anchor > 0


def test_kfac_factors_of_a_convolution_agree_with_loops_over_places() -> None:
    module = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1, stride=2), nn.Flatten(), nn.Linear(27, 4, bias=False))
    inputs = images(5)
    layers, _ = kfac_factors(module, logits_of, [batch(inputs)], torch.Generator().manual_seed(9))
    found = {layer.weight: layer for layer in layers}
    uniform = torch.rand(5, generator=torch.Generator().manual_seed(9))
    convolved = module[0](inputs)
    log_p = torch.log_softmax(module[1:](convolved), dim=-1)
    drawn = torch.stack([drawn_labels(row, u) for row, u in zip(log_p.detach(), uniform, strict=True)])
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
    torch.testing.assert_close(found[0].A, A)
    torch.testing.assert_close(found[0].G, G)
    assert found[2].bias is None
    assert not module[0]._forward_hooks


def test_kfac_gradient_is_the_derivative_of_its_penalty_and_costs_nothing_where_no_input_goes() -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.Linear(3, 2)).double()
    inputs = torch.randn(30, 4, dtype=torch.float64)
    inputs[:, 3] = 0  # a feature the data never uses
    layers, _ = kfac_factors(module, logits_of, [batch(inputs)], torch.Generator().manual_seed(0))
    covered = {place for layer in layers for place in (layer.weight, layer.bias) if place is not None}
    rest = fisher_diagonal(module, logits_of, [batch(inputs)], torch.Generator(), covered)
    assert [bool(f.any()) for f in rest] == [False, False, True, True, False, False]
    start = moved(module)
    anchor, parameters = KFACAnchor(start, layers, rest), list(module.parameters())
    for place, pull in enumerate(anchor.gradient(parameters)):
        flat, step = parameters[place].data.view(-1), 1e-5
        for entry in range(flat.numel()):
            flat[entry] += step
            above = float(anchor.penalty(parameters))
            flat[entry] -= 2 * step
            below = float(anchor.penalty(parameters))
            flat[entry] += step
            assert float(pull.flatten()[entry]) == pytest.approx((above - below) / (2 * step), abs=1e-6)
    before = float(anchor.penalty(parameters))
    parameters[0].data[:, 3] += 100.0
    assert float(anchor.penalty(parameters)) == pytest.approx(before)


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
    """As convolutional networks have it: (images, channels, places)."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.mT).mT


def test_normalisations_get_their_fisher_information_with_the_layers() -> None:
    torch.manual_seed(0)
    module, inputs = Twice(), torch.randn(5, 6, 6)  # as many places as channels
    for parameter in module.parameters():
        parameter.data.add_(0.3 * torch.randn_like(parameter))
    expected = dict(zip(dict(module.named_parameters()), slow_fisher(module, inputs, 9), strict=True))
    names = list(expected)
    layers, found = kfac_factors(module, logits_of, [batch(inputs)], torch.Generator().manual_seed(9))
    assert {names[place] for place in found} == {f"{norm}.{part}" for norm in ("tokens", "rows") for part in PARTS}
    for place, each in found.items():
        torch.testing.assert_close(each, expected[names[place]])
    assert {names[layer.weight] for layer in layers} == {"one.weight", "other.weight"}
    module.tokens.bias.requires_grad_(False)  # half of it may change: it is left to the slower way
    assert len(kfac_factors(module, logits_of, [batch(inputs)], torch.Generator()).diagonals) == 2


def test_the_anchor_has_the_information_of_every_weight_that_may_change(
    original: famr.Classifier, without_three: famr.Splits, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []
    usual = choose.fisher_diagonal

    def noted(module: nn.Module, *rest: Any) -> list[Tensor]:
        every = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
        asked.append([name for place, name in enumerate(every) if place not in rest[-1]])
        return usual(module, *rest)

    monkeypatch.setattr(choose, "fisher_diagonal", noted)
    kept(original, without_three, anchor="kfac", epochs=1)
    assert asked == [["cls_token", "pos_embed"]]  # nothing else needs a gradient for each image


PARTS = ("weight", "bias")
SETTINGS = {"optimiser": "adam", "learning_rate": 3e-4, "reduction": "mean", "batch_size": 32, "epochs": 5}


def kept(original: famr.Classifier, splits: famr.Splits, **changes: object) -> famr.Unlearned:
    return famr.forget(original, splits, alg1(**{**SETTINGS, **changes}), device="cpu")


def test_holding_a_few_answers_keeps_more_retained_accuracy(
    original: famr.Classifier, without_three: famr.Splits
) -> None:
    free, held = (kept(original, without_three, epochs=8, function_strength=s).history[-1] for s in (0.0, 3.0))
    assert held.retain_accuracy > free.retain_accuracy + 0.05  # type: ignore[operator]
    assert held.loss_anchor > 0


@pytest.mark.parametrize("metric", ["fisher", "kfac"])
def test_a_strong_fisher_anchor_keeps_the_original(
    original: famr.Classifier, without_three: famr.Splits, metric: str
) -> None:
    weak, strong = (
        kept(original, without_three, anchor=metric, fisher_images=100, strength=s).history[-1] for s in (1.0, 1e6)
    )
    assert strong.forget_kl < weak.forget_kl
    assert strong.retain_accuracy > weak.retain_accuracy  # type: ignore[operator]


def test_the_bound_of_proposition_1_is_withheld_for_another_metric(
    original: famr.Classifier, without_three: famr.Splits
) -> None:
    assert kept(original, without_three, anchor="fisher", fisher_images=20, epochs=1).drift_bound is None
    assert kept(original, without_three, function_strength=1.0, epochs=1).drift_bound is not None


def test_the_same_seed_draws_the_same_anchor(original: famr.Classifier, without_three: famr.Splits) -> None:
    options = {"anchor": "fisher", "fisher_images": 20, "function_strength": 1.0, "epochs": 1}
    first, again = (kept(original, without_three, **options).model.digest() for _ in range(2))
    assert first == again


@pytest.mark.parametrize("options", [{"anchor": "fisher"}, {"anchor": "kfac"}, {"function_strength": 1.0}])
def test_an_anchor_without_its_images_is_refused(
    original: famr.Classifier, digits: Data, options: dict[str, object]
) -> None:
    alone = famr.forget_only(digits.train.where(digits.train.targets == 3))
    with pytest.raises(RequestError, match="needs retained images"):
        kept(original, alone, **options)


def test_other_images_can_stand_in_for_retained_ones(original: famr.Classifier, digits: Data) -> None:
    alone = famr.forget_only(digits.train.where(digits.train.targets == 3))
    method = alg1(**{**SETTINGS, "function_strength": 1.0, "epochs": 1})
    proxy = digits.train.where(digits.train.targets != 3)
    result = famr.forget(original, alone, method, anchor_images=proxy, device="cpu")
    assert result.history[-1].loss_anchor > 0


def test_some_of_each_class_are_drawn_without_repetition(digits: Data) -> None:
    some = sample_per_class(digits.train, 7, seed=0)
    assert torch.bincount(some.targets).tolist() == [7] * 10
    assert len(set(some.ids)) == 70
    assert some.ids != sample_per_class(digits.train, 7, seed=1).ids


@pytest.mark.parametrize(("count", "skip"), [(7, 0), (7, 7), (3, 140), (1000, 0), (5, 1000)])
def test_some_of_each_class_are_the_first_of_it_in_a_random_order(digits: Data, count: int, skip: int) -> None:
    images = digits.train.where(digits.train.targets != 4)  # a class that does not occur
    shuffled = torch.randperm(len(images), generator=torch.Generator().manual_seed(3)).tolist()
    expected = []
    for target in range(10):
        of_class = [place for place in shuffled if images.targets[place] == target]
        expected += [images.ids[place] for place in of_class[skip : skip + count]]
    assert sample_per_class(images, count, seed=3, skip=skip).ids == expected


@pytest.mark.parametrize("failures", [0, 1, 2])
def test_eigenvectors_that_are_not_found_at_once_are_found_with_a_little_more_on_the_diagonal(
    failures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LAPACK gives up on some matrices of low rank, as those of a DenseNet with many dead inputs."""
    rows = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    matrix, calls, usual = rows.T @ rows, [], torch.linalg.eigh

    def moody(given: Tensor) -> object:
        calls.append(1)
        if len(calls) <= failures:
            raise torch.linalg.LinAlgError("failed to converge")
        return usual(given)

    monkeypatch.setattr(torch.linalg, "eigh", moody)
    values, vectors = kfac._eigh(matrix)
    assert len(calls) == failures + 1
    torch.testing.assert_close(vectors @ torch.diag(values) @ vectors.T, matrix, rtol=0, atol=1e-5)


def test_eigenvectors_that_cannot_be_found_are_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(given: Tensor) -> object:
        raise torch.linalg.LinAlgError("failed to converge")

    monkeypatch.setattr(torch.linalg, "eigh", never)
    with pytest.raises(NumericsError, match="eigenvectors") as caught:
        kfac._eigh(torch.eye(4))
    assert "--anchor" in str(caught.value)


def test_the_originals_own_weights_are_the_anchor_where_they_lie_on_the_same_device() -> None:
    """A copy of them would be a third one in memory; what is fixed has none."""
    original = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    module = copy.deepcopy(original)
    module[0].bias.requires_grad_(False)
    found = starting_weights(module, original)
    expected = [original[0].weight, original[1].weight, original[1].bias]
    assert [each.data_ptr() for each in found] == [each.data_ptr() for each in expected]
    assert not any(each.requires_grad for each in found)
    own = [weight.data_ptr() for weight in module.parameters()]
    for other in (None, copy.deepcopy(original).double()):  # nobody's, or of another kind
        copies = starting_weights(module, other)
        assert all(torch.equal(each, weight) for each, weight in zip(copies, expected, strict=True))
        assert not {each.data_ptr() for each in copies} & {*own, *(weight.data_ptr() for weight in expected)}
