"""Recorded steps are the called ones, and a step that cannot be recorded is called."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from conftest import NEEDS_CUDA
from famr.data.loaders import Batch
from famr.engine import graphs
from famr.engine.graphs import SYNCHRONISES, GraphedStep
from recorded_steps import NOT_CAPTURABLE, CpuRecording, record_on_cpu

CPU = torch.device("cpu")
Step = Callable[..., Tensor]


def batches(count: int, images: int = 4, device: torch.device = CPU) -> list[Batch]:
    draw = torch.Generator().manual_seed(0)
    return [
        Batch(
            torch.randn(images, 3, generator=draw).to(device),
            torch.randn(images, generator=draw).to(device),
            torch.randperm(9, generator=draw)[:images].to(device),
        )
        for _ in range(count)
    ]


def walk(weight: Tensor) -> Step:
    """A step that depends on the images, their labels and positions, and all steps before."""

    def step(images: Tensor, labels: Tensor, positions: Tensor) -> Tensor:
        gradient = (images * (positions + labels)[:, None]).mean(0)
        loss = (weight * gradient).sum()
        weight.mul_(0.9).sub_(0.1 * gradient)
        return loss

    return step


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    record_on_cpu(monkeypatch)


def assert_same_steps(graphed: GraphedStep, step: Step, inputs: list[Batch]) -> None:
    losses = [graphed(batch) for batch in inputs]  # all of them first: a later one must not write over an earlier one
    torch.testing.assert_close(torch.stack(losses), torch.stack([step(*batch) for batch in inputs]))


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("warmup", [1, 3])
def test_replayed_steps_are_the_called_ones(warmup: int) -> None:
    called, replayed = torch.ones(3), torch.ones(3)
    runs: list[int] = []
    step = walk(replayed)

    def counted(*tensors: Tensor) -> Tensor:
        runs.append(1)
        return step(*tensors)

    assert_same_steps(GraphedStep(counted, CPU, warmup), walk(called), batches(12))
    torch.testing.assert_close(replayed, called)
    assert len(runs) == warmup + 1  # and once for the recording
    assert CpuRecording.made == 1


@pytest.mark.usefixtures("on_cpu")
def test_each_shape_and_type_of_the_inputs_has_a_recording_of_its_own() -> None:
    called, replayed = torch.ones(3), torch.ones(3)
    mixed = [batch for pair in zip(batches(6), batches(6, images=2), strict=True) for batch in pair]
    mixed += [Batch(batch.images.double(), batch.labels, batch.positions) for batch in batches(3)]
    graphed, step = GraphedStep(walk(replayed), CPU), walk(called)
    for batch in mixed:
        torch.testing.assert_close(graphed(batch), step(*batch))
    torch.testing.assert_close(replayed, called)
    assert CpuRecording.made == 3


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("in_place", [True, False])
def test_the_stand_in_shows_a_step_that_reads_what_is_replaced_by_another_tensor(in_place: bool) -> None:
    """The check that the tests of engines rely on."""
    weight, rates = torch.zeros(3), [torch.zeros(())]
    graphed = GraphedStep(lambda images: weight.add_(rates[0] * images).sum(), CPU)
    for value in (1.0, 2.0, 3.0):
        if in_place:
            rates[0].fill_(value)
        else:
            rates[0] = torch.tensor(value)
        graphed([torch.ones(3)])
    assert (float(weight[0]) == 1 + 2 + 3) is in_place


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("warmup", [1, 2])
def test_a_step_for_which_the_host_waits_is_called_with_one_warning_and_never_recorded(warmup: int) -> None:
    def waits(images: Tensor) -> Tensor:
        warnings.warn(SYNCHRONISES, stacklevel=1)
        return images.sum()

    graphed = GraphedStep(waits, CPU, warmup)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as a network that is compiled in its first steps may wait there
        for _ in range(warmup):  # the last of these is looked at, and waits for what may be copied once
            graphed([torch.ones(3)])
    with pytest.warns(UserWarning, match="run one by one.*the host waits for the device at .*test_graphs"):
        assert float(graphed([torch.ones(3)])) == 3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the step itself
        assert [float(graphed([torch.full((3,), value)])) for value in (2.0, 3.0)] == [6.0, 9.0]
    assert CpuRecording.made == 0


@pytest.mark.usefixtures("on_cpu")
def test_a_step_that_waits_in_its_first_call_alone_is_recorded() -> None:
    """As one that copies constants to the device when it is first called."""
    calls = []

    def copies_once(images: Tensor) -> Tensor:
        if not calls:
            warnings.warn(SYNCHRONISES, stacklevel=1)
        calls.append(images)
        return images.sum()

    graphed = GraphedStep(copies_once, CPU)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [float(graphed([torch.full((3,), value)])) for value in (1.0, 2.0, 3.0, 4.0)] == [3.0, 6.0, 9.0, 12.0]
    assert CpuRecording.made == 1


@pytest.mark.usefixtures("on_cpu")
def test_other_warnings_of_the_first_step_are_passed_on() -> None:
    def warns(images: Tensor) -> Tensor:
        warnings.warn("Something else.", stacklevel=1)
        return images.sum()

    with pytest.warns(UserWarning, match="Something else"):
        GraphedStep(warns, CPU)([torch.ones(3)])


@pytest.mark.usefixtures("on_cpu")
def test_a_step_whose_recording_fails_is_called_with_one_warning() -> None:
    """As where the sync check does not notice that the host waits."""
    called, replayed = torch.ones(3), torch.ones(3)
    step = walk(replayed)

    def asks(*tensors: Tensor) -> Tensor:
        loss = step(*tensors)
        assert float(loss) < 1e9
        return loss

    graphed = GraphedStep(asks, CPU)
    inputs = batches(8)
    usual = walk(called)
    torch.testing.assert_close(graphed(inputs[0]), usual(*inputs[0]))
    with pytest.warns(UserWarning, match=f"run one by one.*{NOT_CAPTURABLE}"):
        loss = graphed(inputs[1])
    torch.testing.assert_close(loss, usual(*inputs[1]))
    assert_same_steps(graphed, usual, inputs[2:])
    torch.testing.assert_close(replayed, called)


def test_on_a_cpu_a_step_is_simply_called() -> None:
    weight = torch.ones(3)
    given = batches(1)[0]
    read: list[Tensor] = []
    GraphedStep(lambda *tensors: read.extend(tensors) or weight.sum(), CPU)(given)
    assert all(tensor is own for tensor, own in zip(read, given, strict=True))
    assert not graphs.can_record(CPU)


@NEEDS_CUDA
def test_replayed_steps_are_the_called_ones_on_cuda() -> None:
    device = torch.device("cuda")
    called, replayed = torch.ones(3, device=device), torch.ones(3, device=device)
    graphed = GraphedStep(walk(replayed), device)
    mixed = batches(6, device=device) + batches(6, images=2) + batches(6, device=device)
    usual = walk(called)
    for batch in mixed:
        torch.testing.assert_close(graphed(batch), usual(*(tensor.to(device) for tensor in batch)))
    torch.testing.assert_close(replayed, called)
    assert len(graphed._recordings) == 2


@NEEDS_CUDA
def test_after_a_step_for_which_the_host_waits_the_device_is_as_before() -> None:
    device = torch.device("cuda")

    def waits(images: Tensor) -> Tensor:
        return images.sum() if float(images.sum()) > 0 else images.mean()

    graphed = GraphedStep(waits, device)
    graphed([torch.ones(3, device=device)])
    with pytest.warns(UserWarning, match="the host waits for the device at .*test_graphs"):
        graphed([torch.ones(3, device=device)])
    assert float(graphed([torch.ones(3, device=device)])) == 3
    torch.cuda.empty_cache()
    torch.rand(3, device=device)
    called, replayed = torch.ones(3, device=device), torch.ones(3, device=device)
    assert_same_steps(GraphedStep(walk(replayed), device), walk(called), batches(5, device=device))
