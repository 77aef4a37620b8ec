"""What a plan of attention takes, and what it saves: cuDNN's kernels beside those that are ready at once.

    python -m benchmarks.attention --output benchmarks/results/attention-h200.json

Forwards and backwards, with deterministic kernels, as the steps of a run have it. The first call of each size draws up
the plan; then many are captured and replayed. `attention.WORTH` in famr is read off this.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch.nn import functional as F

from benchmarks.cells import Results, log
from famr.engine.devices import deterministic, pick_device
from famr.engine.graphs import own_stream


class Size(NamedTuple):
    """Of the queries."""

    images: int
    heads: int
    tokens: int
    features: int = 64


SIZES = (
    Size(125, 3, 197),
    Size(250, 3, 197),
    Size(250, 6, 197),
    Size(250, 12, 197),
    Size(250, 16, 197),
    Size(250, 12, 50),
    Size(32, 12, 577),
)
AT_ONCE = 10
"""Calls in one graph."""
REPLAYS = 20


def measured(size: Size, planned: bool) -> dict[str, float]:
    """Seconds of the first call of a size, and of each one later."""
    torch.backends.cuda.enable_cudnn_sdp(planned)
    draw = torch.Generator(device="cuda").manual_seed(0)
    query, key, value, slope = (
        torch.randn(size, generator=draw, device="cuda", dtype=torch.bfloat16).requires_grad_(place < 3)
        for place in range(4)
    )

    def both() -> None:
        F.scaled_dot_product_attention(query, key, value).backward(slope)  # type: ignore[no-untyped-call]
        query.grad = key.grad = value.grad = None

    with torch.cuda.stream(own_stream(torch.device("cuda"))):
        first = _timed(both)
        both()
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin()
        for _ in range(AT_ONCE):
            both()
        graph.capture_end()
        graph.replay()

        def again() -> None:
            for _ in range(REPLAYS):
                graph.replay()

        later = _timed(again) / (AT_ONCE * REPLAYS)
    return {"first": first, "later": later}


def _timed(work: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    begun = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    if pick_device("auto").type != "cuda":
        raise SystemExit("This needs a GPU.")
    results = Results(given.output, {"benchmark": "attention"})
    with deterministic(0):
        for planned in (False, True):
            measured(Size(8, 3, 197), planned)  # the library itself is loaded
        for size in SIZES:
            if not results.has(**size._asdict()):
                cell = {**size._asdict(), "unplanned": measured(size, False), "planned": measured(size, True)}
                results.add(cell)
                log(str(cell))


if __name__ == "__main__":
    main()
