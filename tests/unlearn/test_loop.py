"""Alg. 1 against slow obvious loops; what it must leave alone; what it must refuse."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from famr.unlearn.forget_loss import ForgetLoss
from torch import Tensor, nn
from traced import Traced

import famr
from conftest import alg1
from famr.anchors import AnchorTerm, KFACAnchor
from famr.data.loaders import order
from famr.engine import anchored_step, waking
from famr.engine import oom as scarce
from famr.errors import NumericsError, RequestError
from famr.losses.objective import target_kl, uniform_target
from famr.optim.natural import natural_step
from famr.optim.schedules import epoch_seed
from famr.unlearn import loop as optimise


class Small(nn.Module):
    """A network with everything that evaluation mode must hold still: BatchNorm and dropout."""

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
    """J differentiated whole, anchor included, by autograd; one torch optimiser step a batch."""
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
            if not plain:  # up for a tenth of the steps, down along a cosine
                whole = 3 * method.epochs
                up, down = min(1, (steps + 1) / (0.1 * whole)), (1 + math.cos(math.pi * steps / whole)) / 2
                optimiser.param_groups[0]["lr"] = method.learning_rate * up * down
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
    found = famr.forget(module, method=method, forget=batches(), device="cpu")
    torch.testing.assert_close(weights(found.module), weights(slow_loop(module, method)), rtol=1e-4, atol=1e-6)
    assert not torch.allclose(weights(found.module), weights(module), atol=1e-3)


@pytest.mark.parametrize(("most", "strength"), [(1, 0.7), (100, 0.7), (1 << 20, 0.7), (100, 0.0), (100, 1e-40)])
def test_the_plain_step_over_many_weights_is_that_over_one_after_the_other(
    most: int, strength: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(anchored_step, "IN_CACHE", most)
    draws = torch.Generator().manual_seed(0)
    shapes = [(3, 4), (5,), (1,), (2, 2, 2), (6,)]
    weights, original, slopes = ([torch.randn(shape, generator=draws) for shape in shapes] for _ in range(3))
    parameters = [torch.nn.Parameter(weight.clone()) for weight in weights]
    for place, (parameter, slope) in enumerate(zip(parameters, slopes, strict=True)):
        parameter.grad = None if place == 2 else slope.clone()  # a weight that the loss does not see
    anchored_step.anchored_step(parameters, original, rate=0.3, strength=strength)
    for place, (parameter, weight, start, slope) in enumerate(zip(parameters, weights, original, slopes, strict=True)):
        gradient = torch.zeros_like(slope) if place == 2 else slope
        torch.testing.assert_close(parameter.detach(), weight - 0.3 * (gradient + strength * (weight - start)))
        assert parameter.grad is None or torch.equal(parameter.grad, slope)  # it is read, not changed


def test_the_plain_step_makes_no_more_at_once_than_the_caches_of_a_cpu_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it is given back to the system, and cleared for the next step."""
    made: list[int] = []
    own = torch._foreach_sub

    def noted(*given: Any) -> Any:
        found = own(*given)
        made.append(sum(each.nbytes for each in found))
        return found

    monkeypatch.setattr(torch, "_foreach_sub", noted)
    parameters = [torch.nn.Parameter(torch.ones(25_000)) for _ in range(20)]
    anchored_step.anchored_step(parameters, [torch.zeros(25_000)] * 20, rate=0.3, strength=0.7)
    assert sum(made) == 20 * 100_000
    assert max(made) == 200_000  # of 256 KiB


@pytest.mark.parametrize("few", [0, 1 << 20])
def test_a_small_network_keeps_its_gradients_on_a_cpu_until_new_ones_are_made(
    few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scarce, "FEW_GRADIENTS", few)
    kept: list[bool] = []

    def note(module: nn.Module, _inputs: Any, out: Tensor) -> None:
        if type(module) is Small and out.requires_grad:
            kept.append(any(weight.grad is not None for weight in module.parameters()))

    seen = nn.modules.module.register_module_forward_hook(note)
    method = alg1(epochs=2, strength=2.0, learning_rate=1e-2)
    try:
        found = famr.forget(network(), method=method, forget=batches(), device="cpu")
    finally:
        seen.remove()
    assert kept[-6:] == [False] + [few > 0] * 5
    torch.testing.assert_close(weights(found.module), weights(slow_loop(network(), method)), rtol=1e-4, atol=1e-6)


def test_adamw_pulls_back_past_adams_scaling() -> None:
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


@pytest.mark.parametrize("awake", [True, False])
@pytest.mark.parametrize(("optimiser", "plain"), [("sgd", 0), ("natural", 0), ("adam", 1), ("adamw", 1)])
def test_the_first_step_is_captured_where_nothing_is_made_in_it_alone(
    optimiser: str, plain: int, awake: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = torch.device("cuda", 1)
    monkeypatch.setattr(waking, "_AWAKE", {there} if awake else {torch.device("cuda", 0)})
    monkeypatch.setattr(optimise, "Captured", lambda _step, _device, plain, behind=False: (plain, behind))
    method = famr.FAMR(optimiser=optimiser, batch_size=250)  # type: ignore[arg-type]
    small, large = 5_500_000, 303_000_000  # a ViT-Ti and a ViT-L, which keeps a GPU busy while Python captures
    assert optimise.capturing(torch.zeros, there, method, small) == (plain if awake else 1, False)
    assert optimise.capturing(torch.zeros, there, method, large) == (2, True)
    assert optimise.capturing(torch.zeros, torch.device("cpu"), method, small) is None


NATURAL = {"optimiser": "natural", "strength": 1e4, "epochs": 3, "batch_size": 32, "temperature": 0.5}


@pytest.mark.parametrize(
    "method",
    [
        alg1(epochs=3, batch_size=32),
        famr.FAMR(anchor="kfac", function_strength=1.0, function_images=4, **NATURAL),
        famr.FAMR(anchor="fisher", function_strength=0.0, **NATURAL),
    ],
    ids=["paper", "kfac and answers", "fisher"],
)
def test_steps_that_are_captured_from_the_first_on_go_where_plain_ones_go(
    method: famr.FAMR, original: famr.Classifier, without_three: famr.Splits, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> famr.Unlearned:
        return famr.forget(original, without_three, method, device="cpu", monitor=famr.Monitor(track_retain=False))

    def prepared(parameters: list[nn.Parameter], anchors: list[AnchorTerm], *rest: Any) -> None:
        metric = anchors[0].anchor
        assert not isinstance(metric, KFACAnchor) or "_alike" in vars(metric)  # no step has to look for eigenvectors
        natural_step(parameters, anchors, *rest)

    plain = run()
    monkeypatch.setattr(optimise, "natural_step", prepared)
    monkeypatch.setattr(optimise, "capturing", lambda step, device, *_: Traced(step, device, plain=0))
    monkeypatch.setattr(Traced, "repeated", 0)
    repeated = run()
    assert Traced.repeated > 5
    torch.testing.assert_close(repeated.module.state_dict(), plain.module.state_dict())
    assert not torch.allclose(weights(plain.module), weights(original.module), atol=1e-4)


def test_a_step_that_was_only_written_down_can_be_taken_in_parts(
    original: famr.Classifier, without_three: famr.Splits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A capture that broke off where weights were to move has moved none; in the plain step after it memory is full."""
    method, broken, full = alg1(epochs=1, batch_size=64), [True], [True]
    plain = famr.forget(original, without_three, method, device="cpu", monitor=famr.Monitor(track_retain=False))
    move, backward = optimise.anchored_step, optimise.backward

    def breaks_off(*given: Any) -> None:
        if broken:
            broken.clear()
            raise RuntimeError("operation not permitted when stream is capturing")
        move(*given)

    def runs_out(*given: Any) -> Tensor:
        if not broken and full:
            full.clear()
            raise torch.OutOfMemoryError("CUDA out of memory")
        return backward(*given)

    def taken(step: Callable[..., Tensor], given: Sequence[Tensor], _sizes: object, _left: int) -> Tensor:
        if broken:
            with pytest.raises(RuntimeError, match="capturing"):
                step(*given)
        return step(*given)

    monkeypatch.setattr(optimise, "anchored_step", breaks_off)
    monkeypatch.setattr(optimise, "backward", runs_out)
    monkeypatch.setattr(optimise, "capturing", lambda step, *_: partial(taken, step))
    with pytest.warns(UserWarning, match="in 2 parts"):
        found = famr.forget(original, without_three, method, device="cpu", monitor=famr.Monitor(track_retain=False))
    assert not full
    torch.testing.assert_close(found.module.state_dict(), plain.module.state_dict())


def test_held_out_images_are_left_alone_by_a_target_that_does_not_depend_on_them(
    original: famr.Classifier, without_three: famr.Splits, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(ForgetLoss, "held_out", lambda *_: asked.append(True))
    famr.forget(original, without_three, alg1(epochs=1), device="cpu", monitor=famr.Monitor(track_retain=False))
    assert not asked


def test_the_search_for_eigenvectors_is_counted_with_the_steps(
    original: famr.Classifier, without_three: famr.Splits, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    own = KFACAnchor.find_eigenvectors

    def slowly(anchor: KFACAnchor) -> None:
        own(anchor)
        now[0] += 1000

    monkeypatch.setattr(KFACAnchor, "find_eigenvectors", slowly)
    monkeypatch.setattr(optimise.time, "perf_counter", lambda: now[0])
    method = famr.FAMR(anchor="kfac", function_strength=0.0, **{**NATURAL, "epochs": 1})
    result = famr.forget(original, without_three, method, device="cpu", monitor=famr.Monitor(track_retain=False))
    assert result.history[0].seconds == 0
    assert result.seconds == 1000


def test_the_paper_preset_has_the_papers_numbers() -> None:
    paper = famr.FAMR.paper()
    assert (paper.learning_rate, paper.strength, paper.epochs) == (1e-4, 0.1, 10)
    assert (paper.optimiser, paper.reduction, paper.alpha, paper.beta) == ("sgd", "sum", 1.0, 0.0)


def test_batchnorm_statistics_do_not_move() -> None:
    module = network().train()
    found = famr.forget(module, method=alg1(learning_rate=1e-2), forget=batches(), device="cpu")
    for name, buffer in module.named_buffers():
        assert torch.equal(buffer, dict(found.module.named_buffers())[name]), name


def test_dropout_is_off_so_that_two_runs_without_a_seed_in_common_agree() -> None:
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
    found = famr.forget(network(), method=alg1(epochs=1), forget=batches(), device="cpu")
    assert all(parameter.grad is None for parameter in found.module.parameters())


def test_frozen_parameters_stay_where_they_are() -> None:
    module = network()
    for parameter in module.body.parameters():  # type: ignore[union-attr]
        parameter.requires_grad_(False)
    found = famr.forget(module, method=alg1(learning_rate=1e-2), forget=batches(), device="cpu").module
    assert torch.equal(weights(found.body), weights(module.body))  # type: ignore[arg-type]
    assert not torch.equal(weights(found.head), weights(module.head))  # type: ignore[arg-type]


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(
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


def test_the_callers_random_state_is_left_alone(original: famr.Classifier, without_three: famr.Splits) -> None:
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    famr.forget(original, without_three, alg1(epochs=1), device="cpu", monitor=famr.Monitor(track_retain=False))
    assert torch.equal(torch.rand(3), expected)
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_loss_that_is_no_number_names_its_step_and_stops() -> None:
    with pytest.raises(NumericsError, match="finite") as caught:  # the first step leads out of all numbers
        famr.forget(network(), method=alg1(learning_rate=1e38), forget=batches(), device="cpu")
    assert caught.value.exit_code == 5
    where = "epoch 1, step 2, body.0.weight first of 6 weights; images 12, 13, 14, 15, 16, 17"
    assert caught.value.where == where  # places, as a loader's images have no ids


def test_images_that_are_no_numbers_are_noticed_before_the_first_step() -> None:
    broken = batches()
    broken[1][0][0, 0, 0, 0] = float("nan")
    with pytest.raises(NumericsError, match="finite") as caught:
        famr.forget(network(), method=alg1(), forget=broken, device="cpu")
    assert caught.value.where == "before the first step"


def test_a_last_step_that_ruins_the_answers_is_noticed() -> None:
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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("strength", -1),
        ("learning_rate", 0),
        ("learning_rate", float("nan")),
        ("epochs", 0),
        ("batch_size", 0),
        ("alpha", -0.1),
        ("demotion", -0.1),
        ("demotion", float("inf")),
        ("beta", float("inf")),
        ("optimiser", "rmsprop"),
        ("reduction", "max"),
        ("precision", "fp16"),
    ],
)
def test_bad_settings_fail_when_they_are_given(name: str, value: object) -> None:
    with pytest.raises(RequestError, match=name) as caught:
        alg1(**{name: value, **({"style_layer": "x"} if name == "beta" else {})})
    assert repr(value) in str(caught.value)


def test_an_unknown_setting_is_named() -> None:
    with pytest.raises(RequestError, match="strenght"):
        famr.FAMR.from_json({"strenght": 1})
    for wrong in ([], {"a": 1}, "much"):
        with pytest.raises(RequestError):
            famr.FAMR.from_json({"beta": wrong})


def test_a_network_without_trainable_parameters_is_refused() -> None:
    module = network().requires_grad_(False)
    with pytest.raises(RequestError, match="no trainable parameters"):
        famr.forget(module, forget=batches(), device="cpu")
