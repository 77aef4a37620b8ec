"""The same result twice, and nothing left behind."""

from __future__ import annotations

import pytest
import torch

from famr.devices import quick_products, repeatable


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
        with repeatable(seed):
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
        with pytest.raises(KeyError), repeatable(3):
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
        with quick_products():
            assert backend.fp32_precision == "tf32"
        assert backend.fp32_precision == precision
    finally:
        backend.fp32_precision = before
