"""The same result twice, and nothing left behind."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from famr import Classifier
from famr.engine import devices, waking
from famr.engine.devices import deterministic, tf32_matmul, unplanned_attention


def state() -> tuple[object, ...]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cuda.mem_efficient_sdp_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
        torch.random.get_rng_state().tolist(),
    )


def test_inside_everything_is_drawn_from_the_seed_by_kernels_that_repeat_themselves() -> None:
    drawn = []
    for seed in (1, 1, 2):
        with deterministic(seed):
            drawn.append(torch.rand(3))
            assert torch.are_deterministic_algorithms_enabled()
            assert not torch.backends.cuda.mem_efficient_sdp_enabled()
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


@pytest.mark.parametrize("thrifty", [True, False])
def test_the_callers_state_comes_back_even_after_an_error(thrifty: bool) -> None:
    usual = torch.backends.cuda.mem_efficient_sdp_enabled()
    torch.backends.cuda.enable_mem_efficient_sdp(thrifty)
    try:
        before = state()
        with pytest.raises(KeyError), deterministic(3):
            raise KeyError(float(torch.rand(1)))
        assert state() == before
    finally:
        torch.backends.cuda.enable_mem_efficient_sdp(usual)


@pytest.mark.parametrize("precision", ["none", "ieee", "tf32"])
def test_quick_products_leave_the_precision_as_it_was_to_the_letter(precision: str) -> None:
    """A compiled network asks for more than the name of the precision, and is compiled anew where it differs."""
    backend = torch.backends.cuda.matmul
    before = backend.fp32_precision
    try:
        backend.fp32_precision = precision
        with tf32_matmul():
            assert backend.fp32_precision == "tf32"
        assert backend.fp32_precision == precision
    finally:
        backend.fp32_precision = before


def planned() -> bool:
    return bool(torch.backends.cuda.cudnn_sdp_enabled())


@pytest.mark.parametrize("before", [True, False])
def test_attention_goes_without_plans_until_the_last_who_asked_for_it_is_done(before: bool) -> None:
    asked, done, seen = threading.Event(), threading.Event(), []

    def another() -> None:
        with unplanned_attention():
            asked.set()
            done.wait(10)
            seen.append(planned())

    usual = planned()
    torch.backends.cuda.enable_cudnn_sdp(before)
    thread = threading.Thread(target=another)
    try:
        with pytest.raises(KeyError), unplanned_attention():
            raise KeyError(thread.start(), asked.wait(10))
        assert not planned()  # the other thread is not done
        done.set()
        thread.join()
        assert seen == [False]
        assert planned() is before
    finally:
        torch.backends.cuda.enable_cudnn_sdp(usual)


class Noting(nn.Module):
    """A network that notes how attention would be done."""

    def forward(self, images: SimpleNamespace) -> torch.Tensor:
        images.seen.append(planned())
        return torch.zeros(1, 2)


def test_answers_without_a_gradient_take_attention_without_plans_and_steps_take_what_torch_prefers() -> None:
    network = Classifier(Noting())
    for is_cuda, gradient, expected in ((True, False, False), (True, True, planned()), (False, False, planned())):
        images = SimpleNamespace(is_cuda=is_cuda, seen=[])
        with torch.set_grad_enabled(gradient):
            network.logits(images)  # type: ignore[arg-type]
        assert images.seen == [expected]
    assert planned()


def test_a_device_without_a_number_is_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    named = [devices.with_index(torch.device(name)) for name in ("cuda", "cuda:1", "cpu")]
    assert [str(place) for place in named] == ["cuda:3", "cuda:1", "cpu"]
    monkeypatch.setattr(waking, "_AWAKE", set())
    with waking.wakes(torch.device("cuda")) as attention:
        attention.tokens = 1
    woken = [waking.awake(torch.device(name)) for name in ("cuda", "cuda:3", "cuda:1")]
    assert woken == [True, True, False]  # under whichever name a run has it
