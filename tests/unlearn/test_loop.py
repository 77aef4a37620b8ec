"""Alg. 1 against a slow loop; what it must not change; what it must refuse."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn

import famr
from conftest import alg1
from famr.data.loaders import epoch_seed, order
from famr.errors import NumericsError, RequestError
from famr.losses.objective import target_kl, uniform_target


class Small(nn.Module):
    """A network with layers that evaluation mode must freeze: BatchNorm and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5))
        self.head = nn.Linear(4 * 6 * 6, 5)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.body(images))  # type: ignore[no-any-return]


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return Small()


def batches() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(4)
    return [(torch.randn(6, 1, 8, 8, generator=generator), torch.arange(6) % 5) for _ in range(3)]


def slow_loop(module: nn.Module, method: famr.FAMR) -> nn.Module:
    """J differentiated as a whole, anchor included, by autograd; one step of a torch optimiser a batch."""
    assert method.learning_rate is not None
    assert method.epochs is not None
    assert not isinstance(method.strength, str)
    module = copy.deepcopy(module).eval()
    start = [parameter.detach().clone() for parameter in module.parameters()]
    plain = method.optimiser == "sgd"
    optimiser: torch.optim.Optimizer = torch.optim.SGD(module.parameters(), lr=method.learning_rate)
    if not plain:
        optimiser = torch.optim.Adam(module.parameters(), betas=(0.9, 0.99))
    steps = 0
    for epoch in range(1, method.epochs + 1):
        for position in order(3, epoch_seed(0, epoch)).tolist():
            images, _labels = batches()[position]
            kl = target_kl(module(images), uniform_target(5))
            forget = kl.sum() if method.reduction == "sum" else kl.mean()
            anchor = sum((p - p0).square().sum() for p, p0 in zip(module.parameters(), start, strict=True))
            optimiser.zero_grad()
            (forget + method.strength / 2 * anchor).backward()
            if not plain:  # a tenth of the steps is warm-up, then η falls along a cosine
                total = 3 * method.epochs
                warm_up, falling = min(1, (steps + 1) / (0.1 * total)), (1 + math.cos(math.pi * steps / total)) / 2
                optimiser.param_groups[0]["lr"] = method.learning_rate * warm_up * falling
            optimiser.step()
            steps += 1
    return module


def weights(module: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_the_loop_agrees_with_autograd_through_the_whole_objective(optimiser: str, reduction: str) -> None:
    settings = {"optimiser": optimiser, "reduction": reduction, "strength": 2.0, "learning_rate": 1e-2, "epochs": 4}
    method = alg1(**settings)
    module = network()
    result = famr.forget(module, method=method, forget=batches(), device="cpu")
    torch.testing.assert_close(weights(result.module), weights(slow_loop(module, method)), rtol=1e-4, atol=1e-6)
    assert not torch.allclose(weights(result.module), weights(module), atol=1e-3)


def test_adamw_decouples_the_anchor_from_adams_scaling() -> None:
    """One step: θ₁ is Adam's; the second begins with θ ← θ − ηλ(θ − θ₀)."""
    module, rate, strength = network(), 1e-2, 5.0
    first = alg1(optimiser="adamw", strength=strength, learning_rate=rate, epochs=1)
    free = alg1(optimiser="adam", strength=0.0, learning_rate=rate, epochs=1)
    one = batches()[:1]
    torch.testing.assert_close(
        weights(famr.forget(module, method=first, forget=one).module),
        weights(famr.forget(module, method=free, forget=one).module),
    )
    expected = copy.deepcopy(module).eval()
    start = [parameter.detach().clone() for parameter in expected.parameters()]
    optimiser = torch.optim.Adam(expected.parameters(), betas=(0.9, 0.99))
    for now in (rate, rate / 2):  # along the cosine
        optimiser.param_groups[0]["lr"] = now
        optimiser.zero_grad()
        target_kl(expected(one[0][0]), uniform_target(5)).sum().backward()
        with torch.no_grad():
            for parameter, before in zip(expected.parameters(), start, strict=True):
                parameter -= now * strength * (parameter - before)
        optimiser.step()
    twice = alg1(optimiser="adamw", strength=strength, learning_rate=rate, epochs=2)
    torch.testing.assert_close(weights(famr.forget(module, method=twice, forget=one).module), weights(expected))


def test_batchnorm_statistics_do_not_move() -> None:
    module = network().train()
    result = famr.forget(module, method=alg1(learning_rate=1e-2), forget=batches(), device="cpu")
    for name, buffer in module.named_buffers():
        assert torch.equal(buffer, dict(result.module.named_buffers())[name]), name


def test_dropout_is_off_so_that_two_runs_with_different_seeds_agree() -> None:
    method = alg1(learning_rate=1e-2, epochs=2)
    one = batches()[:1]
    runs = [famr.forget(network().train(), method=method, forget=one, seed=seed, device="cpu") for seed in (1, 2)]
    assert torch.equal(weights(runs[0].module), weights(runs[1].module))


def test_input_model_is_not_mutated() -> None:
    module = network().train()
    before, flags = weights(module).clone(), [m.training for m in module.modules()]
    famr.forget(module, method=alg1(learning_rate=1e-2), forget=batches(), device="cpu")
    assert torch.equal(weights(module), before)
    assert flags == [m.training for m in module.modules()]
    assert all(parameter.grad is None for parameter in module.parameters())


def test_the_result_carries_no_gradients() -> None:
    result = famr.forget(network(), method=alg1(epochs=1), forget=batches(), device="cpu")
    assert all(parameter.grad is None for parameter in result.module.parameters())


def test_frozen_parameters_do_not_change() -> None:
    module = network()
    for parameter in module.body.parameters():  # type: ignore[union-attr]
        parameter.requires_grad_(False)
    result = famr.forget(module, method=alg1(learning_rate=1e-2), forget=batches(), device="cpu").module
    assert torch.equal(weights(result.body), weights(module.body))  # type: ignore[arg-type]
    assert not torch.equal(weights(result.head), weights(module.head))  # type: ignore[arg-type]


def test_the_same_seed_gives_the_same_weights_and_another_seed_different_ones(
    original: famr.Classifier, without_three: famr.Splits
) -> None:
    method = alg1(epochs=2)
    first, again, other = (
        famr.forget(
            original, without_three, method, seed=seed, device="cpu", monitor=famr.Monitor(track_retain=False)
        ).model.digest()
        for seed in (0, 0, 1)
    )
    assert first == again
    assert first != other


def test_the_callers_random_state_does_not_change(original: famr.Classifier, without_three: famr.Splits) -> None:
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    famr.forget(original, without_three, alg1(epochs=1), device="cpu", monitor=famr.Monitor(track_retain=False))
    assert torch.equal(torch.rand(3), expected)
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_loss_that_is_not_finite_names_its_step_and_stops() -> None:
    with pytest.raises(NumericsError, match="finite") as caught:  # the first step overflows
        famr.forget(network(), method=alg1(learning_rate=1e38), forget=batches(), device="cpu")
    assert caught.value.exit_code == 5
    where = "epoch 1, step 2, body.0.weight first of 6 weights; images 12, 13, 14, 15, 16, 17"
    assert caught.value.where == where  # indices, as a loader's images have no ids


def test_images_that_are_not_finite_are_an_error_before_the_first_step() -> None:
    broken = batches()
    broken[1][0][0, 0, 0, 0] = float("nan")
    with pytest.raises(NumericsError, match="finite") as caught:
        famr.forget(network(), method=alg1(), forget=broken, device="cpu")
    assert caught.value.where == "before the first step"


def test_a_last_step_that_makes_predictions_not_finite_is_an_error() -> None:
    one = batches()[:1]
    with pytest.raises(NumericsError, match="finite"):
        famr.forget(network(), method=alg1(learning_rate=1e20, epochs=1), forget=one, device="cpu")


def test_divergence_is_an_error_and_not_a_result() -> None:
    with pytest.raises(NumericsError, match="finite"):
        famr.forget(network(), method=alg1(learning_rate=1e30), forget=batches(), device="cpu")


def test_bf16_autocast_stays_close_to_full_precision() -> None:
    method = alg1(learning_rate=1e-2, epochs=2)
    full = famr.forget(network(), method=method, forget=batches(), device="cpu")
    half = famr.forget(network(), method=alg1(learning_rate=1e-2, epochs=2, precision="bf16"), forget=batches())
    assert half.module.head.weight.dtype == torch.float32  # type: ignore[union-attr]
    torch.testing.assert_close(weights(half.module), weights(full.module), rtol=0.1, atol=5e-3)


def test_a_network_without_trainable_parameters_is_refused() -> None:
    module = network().requires_grad_(False)
    with pytest.raises(RequestError, match="no trainable parameters"):
        famr.forget(module, forget=batches(), device="cpu")
