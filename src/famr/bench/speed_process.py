"""What only a process of its own can show: how much memory the system gives it, and what its first call waits for."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import torch

from famr.bench.speed_loops import numbers
from famr.bench.speed_subject import Named, forgetting, made, synthetic
from famr.config import FAMR
from famr.data.splits import Splits
from famr.errors import NumericsError
from famr.models import Classifier

PATIENCE = 900
"""Seconds after which a process that is measured has hung."""


def in_a_process(module: str, task: Mapping[str, Any]) -> dict[str, Any]:
    """What `measured` of that module prints last; it finds its task on standard input."""
    call = f"from {module} import measured; measured()"
    try:
        done = subprocess.run(
            [sys.executable, "-c", call],
            input=json.dumps(task),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=True,
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        said = (error.stderr or "") if isinstance(error.stderr, str) else ""
        raise NumericsError(
            "A process that was to be measured did not end well.",
            where=(said.strip().splitlines() or [type(error).__name__])[-1],
        ) from error
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def given() -> tuple[dict[str, Any], Classifier, Splits, FAMR]:
    """In the process of its own: the task, the network, what it is to forget, and how."""
    task = json.load(sys.stdin)
    torch.set_num_threads(task["threads"])
    original = made(Named(**task["model"]), task["seed"])
    splits = forgetting(synthetic(original, task["images"], task["images"], task["seed"]))
    return task, original, splits, numbers(task["epochs"], task["batch"], task["precision"])
