"""The same result twice, and nothing left behind."""

from __future__ import annotations

import os
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from famr.engine.devices import CUBLAS, autocast, deterministic, ready_attention, tf32_matmul

CPU = torch.device("cpu")


def state() -> tuple[object, ...]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cuda.mem_efficient_sdp_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
        torch.random.get_rng_state().tolist(),
        os.environ.get(CUBLAS),
    )


def test_inside_everything_is_drawn_from_the_seed_by_deterministic_kernels() -> None:
    draws = []
    for seed in (1, 1, 2):
        with deterministic(seed):
            draws.append(torch.rand(3))
            assert torch.are_deterministic_algorithms_enabled()
            assert not torch.backends.cuda.mem_efficient_sdp_enabled()
            assert os.environ[CUBLAS]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


@pytest.mark.parametrize("efficient", [True, False])
@pytest.mark.parametrize("workspace", [None, ":16:8"])
def test_the_callers_state_returns_even_after_an_error(
    efficient: bool, workspace: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if workspace is None:
        monkeypatch.delenv(CUBLAS, raising=False)
    else:
        monkeypatch.setenv(CUBLAS, workspace)
    usual = torch.backends.cuda.mem_efficient_sdp_enabled()
    torch.backends.cuda.enable_mem_efficient_sdp(efficient)
    try:
        before = state()
        with pytest.raises(KeyError), deterministic(3):
            raise KeyError(float(torch.rand(1)))
        assert state() == before
    finally:
        torch.backends.cuda.enable_mem_efficient_sdp(usual)


@pytest.mark.parametrize("precision", ["none", "ieee", "tf32"])
def test_tf32_products_leave_the_precision_exactly_as_it_was(precision: str) -> None:
    """A compiled network reads more than the name of the precision, and is compiled again where it differs."""
    backend = torch.backends.cuda.matmul
    before = backend.fp32_precision
    try:
        backend.fp32_precision = precision
        with tf32_matmul():
            assert backend.fp32_precision == "tf32"
        assert backend.fp32_precision == precision
    finally:
        backend.fp32_precision = before


def test_attention_off_cuda_is_left_alone() -> None:
    assert isinstance(ready_attention(CPU), nullcontext)


def test_full_precision_needs_no_autocast_and_bf16_sees_every_change_of_a_weight() -> None:
    layer = nn.Linear(2, 2, bias=False)
    ones = torch.ones(1, 2)
    with autocast(CPU, "fp32"):
        assert layer(ones).dtype == torch.float32
    sums = []
    with torch.autocast("cpu", dtype=torch.bfloat16):  # the caller's, whose cache of casts lives as long as it does
        for value in (1.0, 2.0):
            with torch.no_grad():
                layer.weight.fill_(value)
            with autocast(CPU, "bf16"):
                out = layer(ones)
            assert out.dtype == torch.bfloat16
            sums.append(float(out.detach().sum()))
    assert sums == [4.0, 8.0]
