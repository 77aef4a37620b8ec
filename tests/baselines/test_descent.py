"""Gradient steps of a baseline: numbers in range, a check for finite numbers, and recording on a GPU."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import famr
from baselines.cases import NAMES, TRAINING, cases, plain, session_of, start
from famr.baselines import Baseline, FineTune, GradientAscent, Steps
from famr.baselines.descent import Descent
from famr.data import Data
from famr.errors import NumericsError, RequestError
from famr.optim.schedules import cosine
from famr.training.steps import GradientSteps

IMAGES = torch.zeros(2, 1, 8, 8)
NOT_RECORDED = {"FAMR", "retrain", "SISA", "Newton step on the head"}


class ReplayedStep:
    """In place of CUDA graphs: the second step of each shape is traced, and later ones replay the trace.

    As in a CUDA graph, a replayed step runs no Python of the loss, and reads the memory that it was traced with.
    """

    replays = 0

    def __init__(self, step: Callable[..., Tensor], _device: torch.device, _warmup: int = 1) -> None:
        self._step = step
        self._seen: set[tuple[torch.Size, ...]] = set()
        self._traces: dict[tuple[torch.Size, ...], Callable[..., Tensor]] = {}

    def __call__(self, inputs: Sequence[Tensor]) -> Tensor:
        shapes = tuple(tensor.shape for tensor in inputs)
        if shapes not in self._seen:
            self._seen.add(shapes)
            return self._step(*inputs)
        if shapes in self._traces:
            ReplayedStep.replays += 1
            with torch.no_grad():  # the backward pass is part of the trace
                return self._traces[shapes](*inputs)
        results: list[Tensor] = []  # tracing runs the step

        def step(*tensors: Tensor) -> Tensor:
            results.append(self._step(*tensors))
            return results[0]

        self._traces[shapes] = make_fx(step)(*inputs)
        return results[0]


def optimiser_with_tensor_rate(parameters: Sequence[Tensor], steps: Steps, _device: Any) -> torch.optim.Optimizer:
    """As `make_optimiser` on CUDA."""
    rate, decay = torch.tensor(steps.learning_rate), steps.weight_decay
    if steps.optimiser == "adam":
        return torch.optim.Adam(parameters, lr=rate, weight_decay=decay, fused=True, capturable=True)
    return torch.optim.SGD(parameters, lr=rate, momentum=steps.momentum, weight_decay=decay, fused=True)


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("famr.training.steps._replayed", ReplayedStep)
    monkeypatch.setattr("famr.baselines.ssd.GraphedStep", ReplayedStep)
    monkeypatch.setattr("famr.baselines.descent.make_optimiser", optimiser_with_tensor_rate)
    monkeypatch.setattr(ReplayedStep, "replays", 0)


@pytest.fixture(scope="module")
def model(digits: Data) -> famr.Classifier:
    """Without dropout, which a trace would repeat."""
    return famr.fit(start(0, plain), digits.train, replace(TRAINING, epochs=4), device="cpu").model


@pytest.fixture(scope="module")
def methods(digits: Data) -> dict[str, Baseline]:
    return cases(digits)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in NOT_RECORDED])
def test_a_replayed_step_gets_everything_that_changes_as_a_tensor(
    name: str,
    methods: dict[str, Baseline],
    model: famr.Classifier,
    without_three: famr.Splits,
    request: pytest.FixtureRequest,
) -> None:
    """Learning rates, numbers of a loss and labels: anything else would keep its value from the recording."""
    called = methods[name].unlearn(model, without_three, seed=3, device="cpu")
    request.getfixturevalue("replayed")
    replayed = methods[name].unlearn(model, without_three, seed=3, device="cpu")
    assert ReplayedStep.replays > 2
    assert replayed.image_passes == called.image_passes
    assert all(parameter.grad is None for parameter in replayed.model.module.parameters())
    torch.testing.assert_close([row.loss for row in replayed.history], [row.loss for row in called.history])
    torch.testing.assert_close(
        replayed.model.module.state_dict(), called.model.module.state_dict(), rtol=1e-4, atol=1e-5
    )


@pytest.mark.usefixtures("replayed")
def test_a_number_that_is_no_tensor_keeps_its_value_from_the_recording(
    model: famr.Classifier, without_three: famr.Splits
) -> None:
    """The test above would notice it."""
    session = session_of(model, without_three)
    descent = Descent(session, Steps(epochs=1, learning_rate=1e-9), 4)

    def loss(images: Tensor, tensor: Tensor) -> Tensor:
        return session.logits(images).square().mean() * 0 + tensor + number

    for number in (1.0, 2.0, 3.0, 4.0):
        descent.step(loss, IMAGES, torch.tensor(number))
    descent.end("all")
    assert session.history[0].loss == pytest.approx((2 + 4 + (3 + 2) + (4 + 2)) / 4)


def test_a_loss_that_is_not_finite_is_an_error(model: famr.Classifier, without_three: famr.Splits) -> None:
    method = GradientAscent().with_numbers(learning_rate=1e30)
    with pytest.raises(NumericsError, match="of gradient ascent is no longer a finite") as caught:
        method.unlearn(model, without_three, device="cpu")
    assert "Lower its learning rate, now 1e+30" in str(caught.value.fix)


def test_a_weight_that_is_not_finite_is_an_error_even_if_the_loss_is(
    model: famr.Classifier, without_three: famr.Splits
) -> None:
    session = session_of(model, without_three)
    last = list(session.model.module.parameters())[-1]

    @torch.no_grad()
    def overflow() -> None:
        last[0] = torch.inf

    descent = Descent(session, Steps(epochs=1, learning_rate=1e-9), 1, after=overflow)
    descent.step(lambda images: session.logits(images).mean(), IMAGES)
    with pytest.raises(NumericsError, match="or a weight of a baseline is no longer a finite"):
        descent.end("epoch 1")


def test_recorded_steps_are_freed_with_the_descent(model: famr.Classifier, without_three: famr.Splits) -> None:
    """Without waiting for the garbage collector: recordings hold much of a GPU's memory, which the next run needs."""
    freed: list[str] = []

    def run() -> None:
        session = session_of(model, without_three)
        descent = Descent(session, Steps(epochs=1, learning_rate=0.1), 1)
        descent.step(lambda images: session.logits(images).mean(), IMAGES)
        steps = next(value for value in vars(descent).values() if isinstance(value, GradientSteps))
        weakref.finalize(steps, freed.append, "steps")

    gc.disable()
    try:
        run()
        assert freed == ["steps"]
    finally:
        gc.enable()


def test_the_history_has_a_row_an_epoch_with_the_mean_loss(model: famr.Classifier, without_three: famr.Splits) -> None:
    session = session_of(model, without_three)
    descent = Descent(session, Steps(epochs=2, learning_rate=1e-9), 4)
    for epoch in descent.epochs("round"):
        for value in (1.0, 2.0):
            descent.step(lambda images, v: session.logits(images).mean() * 0 + v, IMAGES, torch.tensor(value * epoch))
    assert [(row.phase, row.steps) for row in session.history] == [("round 1", 2), ("round 2", 4)]
    assert [row.loss for row in session.history] == pytest.approx([1.5, 3.0])


@pytest.mark.parametrize("allowed", [5, 9, 20, 40])
def test_a_cut_schedule_ends_at_zero_with_its_last_step(
    allowed: int, model: famr.Classifier, without_three: famr.Splits, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates: list[float] = []
    monkeypatch.setattr("famr.training.steps.set_learning_rate", lambda _optimiser, rate: rates.append(rate))
    method = FineTune().with_numbers(epochs=4, learning_rate=1.0, batch_size=128)  # 10 steps an epoch
    result = method.shortened(allowed, planned=40).unlearn(model, without_three, device="cpu")
    taken = {5: 5, 9: 9, 20: 20, 40: 40}[allowed]
    assert result.facts["steps"] == len(rates) == taken
    assert rates == pytest.approx([cosine(step, taken) for step in range(taken)])
    assert rates[0] == 1.0
    assert rates[-1] < 0.1


@pytest.mark.parametrize("name", [name for name in NAMES if name not in NOT_RECORDED - {"Newton step on the head"}])
def test_every_method_with_steps_keeps_to_a_limit(
    name: str, methods: dict[str, Baseline], model: famr.Classifier, without_three: famr.Splits
) -> None:
    method = methods[name]
    cut = method.shortened(3, 1 << 40)
    if name == "Newton step on the head":
        assert cut is method  # it takes none
        return
    facts = cut.unlearn(model, without_three, device="cpu").facts
    assert facts["steps"] <= 3 < facts["steps_planned"]


@pytest.mark.parametrize(
    "numbers",
    [
        {"epochs": 0},
        {"learning_rate": 0.0},
        {"momentum": 1.0},
        {"batch_size": 0},
        {"optimiser": "lion"},
        {"most_steps": 0},
    ],
)
def test_steps_with_a_number_out_of_range_are_refused(numbers: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="must be"):
        Steps(**{"epochs": 1, "learning_rate": 0.1, **numbers})
