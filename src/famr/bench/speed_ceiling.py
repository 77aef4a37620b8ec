"""How fast this machine multiplies matrices at best: no network can be faster than that."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch

from famr.bench.speed_loops import wait_for
from famr.engine.devices import Precision

SIDES = {"cuda": (4096, 8192, 16384), "mps": (2048, 4096), "cpu": (512, 1024, 2048)}
REPEATS = 10
WARM_UPS = 3


def matrix_rate(side: int, device: torch.device, precision: Precision) -> float:
    """TFLOP/s of a square product of random matrices: 2·side³ operations, the median of several."""
    kind = torch.bfloat16 if precision == "bf16" else torch.float32
    draws = torch.Generator(device).manual_seed(side)
    left, right = (torch.randn(side, side, device=device, generator=draws).to(kind) for _ in range(2))
    out = torch.empty_like(left)
    seconds = []
    for turn in range(WARM_UPS + REPEATS):
        wait_for(device)
        begun = time.perf_counter()
        torch.mm(left, right, out=out)
        wait_for(device)
        if turn >= WARM_UPS:
            seconds.append(time.perf_counter() - begun)
    return 2 * side**3 / statistics.median(seconds) / 1e12


def ceiling(device: torch.device, precision: Precision) -> dict[str, Any]:
    """The best rate over a few sizes."""
    rates = {side: matrix_rate(side, device, precision) for side in SIDES[device.type]}
    best = max(rates, key=lambda side: rates[side])
    return {
        "tflops": rates[best],
        "side": best,
        "precision": precision,
        "rates": [{"side": side, "tflops": rate} for side, rate in rates.items()],
    }
