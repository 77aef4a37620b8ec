"""Seconds and peak memory of a method."""

from __future__ import annotations

import pytest
import torch

from famr.baselines.costs import CostMeter


def test_memory_is_counted_beyond_what_was_allocated_before(monkeypatch: pytest.MonkeyPatch) -> None:
    allocated, peak = [100], [900]  # bytes now, and at most since the last reset

    def reset(_device: torch.device) -> None:
        peak[0] = allocated[0]

    def collect() -> int:
        allocated[0] = 40  # another method left 60 that are unreachable
        return 0

    monkeypatch.setattr(torch.cuda, "synchronize", lambda _device: None)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", reset)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _device: allocated[0])
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _device: peak[0])
    monkeypatch.setattr("famr.baselines.costs.gc.collect", collect)
    with CostMeter(torch.device("cuda")) as meter:
        peak[0] = 500
        allocated[0] = 45
    assert meter.peak_memory == 460


def test_memory_is_not_counted_on_a_cpu() -> None:
    with CostMeter(torch.device("cpu")) as meter:
        torch.zeros(1000)
    assert meter.peak_memory is None
    assert meter.seconds >= 0
