"""Anchors: penalties, gradients, and what they do in a run."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import pytest
import torch
from torch import Tensor, nn

import famr
from conftest import alg1
from famr.anchors import (
    ANCHORS,
    AnchorInputs,
    FisherAnchor,
    FunctionAnchor,
    KFACAnchor,
    L2Anchor,
    WeightAnchor,
    original_weights,
)
from famr.anchors.statistics import covered, fisher_diagonal, kfac_statistics
from famr.data import Data
from famr.data.loaders import Batch, order
from famr.data.splits import sample_per_class
from famr.engine.plain import PlainSession
from famr.errors import RequestError
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


def session_of(module: nn.Module) -> PlainSession:
    return PlainSession(famr.Classifier(module), CPU, "fp32", None)


def record_inputs(session: PlainSession) -> list[list[float]]:
    """One number of each image of every batch that the network is called on from now on."""
    seen: list[list[float]] = []

    def note(_module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen.append(inputs[0][:, 0, 0, 0].tolist())

    session.model.module.register_forward_pre_hook(note)
    return seen


@pytest.mark.parametrize("kind", ["l2", "fisher"])
def test_gradient_of_a_weight_anchor_is_the_derivative_of_its_penalty(kind: str) -> None:
    module = network()
    start = moved(module)
    fisher = [torch.rand_like(parameter) for parameter in start]
    anchor = L2Anchor(start) if kind == "l2" else FisherAnchor(start, fisher)
    weights = [torch.ones_like(f) if kind == "l2" else f for f in fisher]
    triples = zip(module.parameters(), start, weights, strict=True)
    penalty = 0.5 * sum((w * (p - p0).square()).sum() for p, p0, w in triples)
    assert isinstance(penalty, Tensor)
    torch.testing.assert_close(anchor.penalty(list(module.parameters())), penalty.detach())
    for ours, theirs in zip(
        anchor.gradient(list(module.parameters())), torch.autograd.grad(penalty, list(module.parameters())), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def test_function_anchor_is_the_mean_kl_to_the_original_and_zero_at_it() -> None:
    session, inputs = session_of(network()), images(8)
    anchor = FunctionAnchor(session, session.loader_batches([(inputs, torch.zeros(8))]), seed=0)
    module, parameters = session.model.module, session.parameters
    assert float(anchor.penalty(parameters)) == pytest.approx(0, abs=1e-6)
    before = module(inputs).detach()
    moved(module)
    expected = kl_divergence(before, module(inputs)).mean()
    torch.testing.assert_close(anchor.penalty(parameters), expected.detach())
    for ours, theirs in zip(anchor.gradient(parameters), torch.autograd.grad(expected, parameters), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_function_anchor_passes_over_all_its_images_in_another_order_each_time() -> None:
    session, inputs = session_of(network()), images(6)
    pairs = [(image[None], torch.zeros(1)) for image in inputs]
    anchor = FunctionAnchor(session, session.loader_batches(pairs), seed=0)
    seen = record_inputs(session)
    for _ in range(12):
        anchor.draw()
        anchor.gradient(session.parameters)
    drawn = [value for values in seen for value in values]
    assert sorted(drawn[:6]) == sorted(drawn[6:]) == sorted(inputs[:, 0, 0, 0].tolist())
    assert drawn[:6] != drawn[6:]


def test_function_anchor_leaves_out_a_short_last_batch_so_that_all_steps_have_one_size() -> None:
    """Which images are left out differs from pass to pass."""
    session, inputs = session_of(network()), images(7)

    def passes(seed: int | None) -> Iterator[Batch]:
        for positions in torch.split(order(7, seed), 3):
            yield Batch(inputs[positions], torch.zeros(len(positions)), positions)

    seen = record_inputs(session)
    anchor = FunctionAnchor(session, passes, seed=0)
    assert [len(values) for values in seen] == [3, 3, 1]  # the original's predictions on all of them
    seen.clear()
    for _ in range(40):
        anchor.draw()
        anchor.gradient(session.parameters)
    assert {len(values) for values in seen} == {3}
    in_passes = [first + second for first, second in zip(seen[::2], seen[1::2], strict=True)]
    assert all(len(set(values)) == 6 for values in in_passes)
    assert {value for values in in_passes for value in values} == set(inputs[:, 0, 0, 0].tolist())


def test_function_anchor_of_a_resumed_run_draws_what_the_run_would_have_drawn() -> None:
    session, inputs = session_of(network()), images(6)
    pairs = [(image[None], torch.zeros(1)) for image in inputs]
    anchor = FunctionAnchor(session, session.loader_batches(pairs), seed=0)
    seen = record_inputs(session)

    def drawn(count: int) -> list[list[float]]:
        seen.clear()
        for _ in range(count):
            anchor.draw()
            anchor.gradient(session.parameters)
        return [*seen]

    whole = drawn(10)
    anchor.restart(7)
    assert drawn(3) == whole[7:]


def test_kfac_of_a_linear_model_and_one_input_is_its_exact_fisher() -> None:
    """With one input x the Fisher information of W is (diag p − ppᵀ) ⊗ x̃x̃ᵀ, a Kronecker product already."""
    module = nn.Linear(3, 4).double()
    one = torch.randn(1, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    layers, _ = kfac_statistics(module, logits_of, [batch(one.repeat(20_000, 1))], torch.Generator().manual_seed(0))
    (layer,) = layers
    p = torch.softmax(module(one).detach(), dim=-1)[0]
    extended = torch.cat([one[0], torch.ones(1, dtype=torch.float64)])
    torch.testing.assert_close(layer.U @ torch.diag(layer.a) @ layer.U.T, torch.outer(extended, extended))
    G = layer.V @ torch.diag(layer.g) @ layer.V.T
    torch.testing.assert_close(G, torch.diag(p) - torch.outer(p, p), atol=0.01, rtol=0)
    start = moved(module)
    anchor = KFACAnchor(start, layers, [torch.zeros_like(p0) for p0 in start])
    weight, bias = (p.detach() - p0 for p, p0 in zip(module.parameters(), start, strict=True))
    change = weight @ one[0] + bias  # of the logits
    exact = 0.5 * change @ (torch.diag(p) - torch.outer(p, p)) @ change
    assert float(anchor.penalty(list(module.parameters()))) == pytest.approx(float(exact), rel=0.05)


def test_kfac_anchors_a_network_of_linear_layers_alone() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    pairs = [(torch.randn(6, 3, 2, 2), torch.arange(6) % 3)]
    method = alg1(anchor="kfac", learning_rate=1e-2, epochs=1)
    result = famr.forget(module, forget=pairs, anchor_images=pairs, method=method)
    assert result.history[-1].loss_anchor > 0


def test_kfac_gradient_is_the_derivative_of_its_penalty_and_zero_in_directions_that_no_input_excites() -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.Linear(3, 2)).double()
    inputs = torch.randn(30, 4, dtype=torch.float64)
    inputs[:, 3] = 0  # a feature the data never uses
    layers, _ = kfac_statistics(module, logits_of, [batch(inputs)], torch.Generator().manual_seed(0))
    rest = fisher_diagonal(module, logits_of, [batch(inputs)], torch.Generator(), covered(layers))
    assert [bool(f.any()) for f in rest] == [False, False, True, True, False, False]
    start = moved(module)
    anchor, parameters = KFACAnchor(start, layers, rest), list(module.parameters())
    for index, pull in enumerate(anchor.gradient(parameters)):
        flat, step = parameters[index].data.view(-1), 1e-5
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


def test_per_image_gradients_are_taken_only_of_parameters_without_a_closed_form(
    original: famr.Classifier, without_three: famr.Splits, monkeypatch: pytest.MonkeyPatch
) -> None:
    covered_by_gradients: list[list[str]] = []
    usual = fisher_diagonal

    def noted(module: nn.Module, *rest: Any) -> list[Tensor]:
        names = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
        covered_by_gradients.append([name for index, name in enumerate(names) if index not in rest[-1]])
        return usual(module, *rest)

    monkeypatch.setattr("famr.anchors.kfac.fisher_diagonal", noted)
    unlearn(original, without_three, anchor="kfac", epochs=1)
    assert covered_by_gradients == [["cls_token", "pos_embed"]]


SETTINGS = {"optimiser": "adam", "learning_rate": 3e-4, "reduction": "mean", "batch_size": 32, "epochs": 5}


def unlearn(original: famr.Classifier, splits: famr.Splits, **changes: object) -> famr.Unlearned:
    return famr.forget(original, splits, alg1(**{**SETTINGS, **changes}), device="cpu")


def test_a_function_space_anchor_keeps_more_retained_accuracy(
    original: famr.Classifier, without_three: famr.Splits
) -> None:
    free, anchored = (unlearn(original, without_three, epochs=8, function_strength=s).history[-1] for s in (0.0, 3.0))
    assert anchored.retain_accuracy > free.retain_accuracy + 0.05  # type: ignore[operator]
    assert anchored.loss_anchor > 0


@pytest.mark.parametrize("metric", ["fisher", "kfac"])
def test_a_strong_fisher_anchor_keeps_the_original(
    original: famr.Classifier, without_three: famr.Splits, metric: str
) -> None:
    weak, strong = (
        unlearn(original, without_three, anchor=metric, fisher_images=100, strength=s).history[-1] for s in (1.0, 1e6)
    )
    assert strong.forget_kl < weak.forget_kl
    assert strong.retain_accuracy > weak.retain_accuracy  # type: ignore[operator]


def test_the_bound_of_proposition_1_is_withheld_for_another_metric(
    original: famr.Classifier, without_three: famr.Splits
) -> None:
    assert unlearn(original, without_three, anchor="fisher", fisher_images=20, epochs=1).drift_bound is None
    assert unlearn(original, without_three, function_strength=1.0, epochs=1).drift_bound is not None


def test_the_same_seed_draws_the_same_anchor(original: famr.Classifier, without_three: famr.Splits) -> None:
    options = {"anchor": "fisher", "fisher_images": 20, "function_strength": 1.0, "epochs": 1}
    first, again = (unlearn(original, without_three, **options).model.digest() for _ in range(2))
    assert first == again


@pytest.mark.parametrize("options", [{"anchor": "fisher"}, {"anchor": "kfac"}, {"function_strength": 1.0}])
def test_an_anchor_without_its_images_is_refused(
    original: famr.Classifier, digits: Data, options: dict[str, object]
) -> None:
    alone = famr.forget_only(digits.train.where(digits.train.targets == 3))
    with pytest.raises(RequestError, match="needs retained images"):
        unlearn(original, alone, **options)


def test_other_images_can_replace_retained_ones(original: famr.Classifier, digits: Data) -> None:
    alone = famr.forget_only(digits.train.where(digits.train.targets == 3))
    method = alg1(**{**SETTINGS, "function_strength": 1.0, "epochs": 1})
    proxy = digits.train.where(digits.train.targets != 3)
    result = famr.forget(original, alone, method, anchor_images=proxy, device="cpu")
    assert result.history[-1].loss_anchor > 0


def test_a_generator_of_anchor_images_serves_several_anchors() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    pairs = [(torch.randn(6, 3, 2, 2), torch.arange(6) % 3)]
    method = alg1(anchor="kfac", function_strength=1.0, learning_rate=1e-2, epochs=1)
    kept = famr.forget(module, forget=pairs, anchor_images=pairs, method=method)
    once = famr.forget(module, forget=pairs, anchor_images=(pair for pair in pairs), method=method)
    assert once.model.digest() == kept.model.digest()


def test_sample_per_class_are_drawn_without_repetition(digits: Data) -> None:
    some = sample_per_class(digits.train, 7, seed=0)
    assert torch.bincount(some.targets).tolist() == [7] * 10
    assert len(set(some.ids)) == 70
    assert some.ids != sample_per_class(digits.train, 7, seed=1).ids


@pytest.mark.parametrize(("count", "skip"), [(7, 0), (7, 7), (3, 140), (1000, 0), (5, 1000)])
def test_sample_per_class_are_the_first_of_it_in_a_random_order(digits: Data, count: int, skip: int) -> None:
    images = digits.train.where(digits.train.targets != 4)  # a class that does not occur
    shuffled = torch.randperm(len(images), generator=torch.Generator().manual_seed(3)).tolist()
    expected = []
    for target in range(10):
        of_class = [index for index in shuffled if images.targets[index] == target]
        expected += [images.ids[index] for index in of_class[skip : skip + count]]
    assert sample_per_class(images, count, seed=3, skip=skip).ids == expected


def test_the_originals_own_weights_are_the_anchor_where_device_and_dtype_are_the_same() -> None:
    """A copy of them would be a third one in memory; frozen parameters have no anchor at all."""
    session = session_of(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)))
    session.train_only({"0.weight", "1.weight", "1.bias"})
    original = session.original.module
    weights = original_weights(session)
    expected = [original[0].weight, original[1].weight, original[1].bias]  # type: ignore[index]
    assert [weight.data_ptr() for weight in weights] == [weight.data_ptr() for weight in expected]
    assert not any(weight.requires_grad for weight in weights)
    session.original = famr.Classifier(copy.deepcopy(original).double())
    copies = original_weights(session)
    assert all(torch.equal(weight, p0) for weight, p0 in zip(copies, expected, strict=True))
    others = [*session.parameters, *session.original.module.parameters()]
    assert not {weight.data_ptr() for weight in copies} & {weight.data_ptr() for weight in others}


@dataclass(frozen=True, eq=False)
class MagnitudeAnchor(WeightAnchor):
    """Relative distance: a weight may change in proportion to its size."""

    original: list[Tensor]

    strength_as_metric: ClassVar[float] = 1.0
    strength_as_penalty: ClassVar[float] = 0.01
    needs_whole_layers: ClassVar[bool] = False

    @classmethod
    def build(cls, inputs: AnchorInputs) -> Self:
        return cls(list(inputs.original))

    def _metric(self) -> list[Tensor]:
        return [1 / (p0.square() + 0.01) for p0 in self.original]

    @torch.no_grad()
    def penalty(self, parameters) -> Tensor:  # type: ignore[no-untyped-def]
        terms = zip(parameters, self.original, self._metric(), strict=True)
        return 0.5 * torch.stack([(f * (p - p0).square()).sum() for p, p0, f in terms]).sum()

    def gradient(self, parameters) -> Iterator[Tensor]:  # type: ignore[no-untyped-def]
        return (f * (p.detach() - p0) for p, p0, f in zip(parameters, self.original, self._metric(), strict=True))

    def precondition(self, gradient, strength: float) -> list[Tensor]:  # type: ignore[no-untyped-def]
        return [g / (1 + strength * f) for g, f in zip(gradient, self._metric(), strict=True)]


def test_an_anchor_of_your_own_takes_one_file_and_one_line(
    original: famr.Classifier, without_three: famr.Splits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ANCHORS, "magnitude", MagnitudeAnchor)  # the line
    weak, strong = (
        unlearn(original, without_three, anchor="magnitude", strength=strength, epochs=3) for strength in (0.0, 1e3)
    )
    assert strong.method.anchor == "magnitude"
    assert strong.drift < 0.5 * weak.drift
    searched = famr.forget(original, without_three, famr.FAMR(anchor="magnitude"), device="cpu")
    assert searched.trials[0].strength == 1.0
    assert searched.history[-1].forget_accuracy <= 0.02  # type: ignore[operator]
    assert famr.FAMR.from_json(searched.method.to_json()).anchor == "magnitude"
