"""The first call of a process: nothing has loaded a GPU's libraries before it, as training does."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from typing import Any

import torch

from famr.bench.speed_loops import run_ours
from famr.bench.speed_process import given, in_a_process


def first_calls(task: Mapping[str, Any], repeats: int) -> dict[str, Any]:
    """Seconds of the steps, of what they had to wait for and of the whole call, in as many processes."""
    found = [in_a_process(__name__, task) for _ in range(repeats)]
    return {
        "median": statistics.median(each["steps"] for each in found),
        "calls": [each["steps"] for each in found],
        "waits": [each["ahead"] for each in found],
        "whole_call": statistics.median(each["whole"] for each in found),
    }


def measured() -> None:
    """In the process of its own: forget once, and say how long it took."""
    task, original, splits, method = given()
    run = run_ours(original, splits, method, task["seed"], torch.device(task["device"]))
    print(json.dumps({"steps": run.steps, "ahead": run.ahead, "whole": run.whole}))
