"""Peak memory of forgetting beside plain SGD fine-tuning at the same batch.

On a GPU the allocator is asked. On a CPU nobody counts but the system, and only for a whole process: each is measured
in a process of its own.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch.nn import functional as F

from famr.bench.speed_loops import run_ours, wait_for
from famr.bench.speed_process import given, in_a_process
from famr.config import FAMR
from famr.data.loaders import image_batches
from famr.data.splits import Splits
from famr.engine.devices import autocast
from famr.models import Classifier
from famr.models.classifier import logits_of

What = Literal["fine-tuning", "ours"]
SLACK = 1.05
"""What may be used beyond fine-tuning and one copy of the weights, as a factor."""


def fine_tune(original: Classifier, splits: Splits, method: FAMR, seed: int, device: torch.device) -> None:
    """Plain SGD on the labels, without momentum: the least that any change of all weights needs."""
    module = original.copy().module.to(device).train()
    optimiser = torch.optim.SGD(module.parameters(), lr=1e-6)
    batches = image_batches(splits.forget, original.require_preprocessing(), method.batch_size, device)
    for epoch in range(method.settled_epochs):
        for batch in batches(seed + epoch):
            with autocast(device, method.settled_precision):
                logits = logits_of(module(batch.images)).float()
            optimiser.zero_grad()
            F.cross_entropy(logits, batch.labels).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    wait_for(device)


def use(what: What, original: Classifier, splits: Splits, method: FAMR, seed: int, device: torch.device) -> None:
    """Do what is to be measured."""
    if what == "ours":
        run_ours(original, splits, method, seed, device)
    else:
        fine_tune(original, splits, method, seed, device)


def bring(original: Classifier, splits: Splits, method: FAMR, device: torch.device) -> None:
    """Have the images there as both find them in their later epochs: prepared, where they are kept so."""
    batches = image_batches(splits.forget, original.require_preprocessing(), method.batch_size, device)
    for seed in (0, 1):
        for _ in batches(seed):
            pass


def peak_on_cuda(
    what: What, original: Classifier, splits: Splits, method: FAMR, seed: int, device: torch.device
) -> dict[str, int]:
    """Bytes that were allocated, and reserved, on the GPU at most; the images are there before."""
    bring(original, splits, method, device)
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()  # what libraries set aside is counted for both
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    use(what, original, splits, method, seed, device)
    peak, reserved = torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
    gc.collect()
    torch.cuda.empty_cache()
    return {"before": before, "peak": peak, "reserved": reserved}


def peak_in_a_process(what: What, task: Mapping[str, Any]) -> dict[str, int]:
    """Bytes of memory of a fresh process, before it begins and at most."""
    return in_a_process(__name__, {**task, "what": what})


def peak_of_processes(what: What, task: Mapping[str, Any], repeats: int) -> dict[str, Any]:
    """The process in the middle of several: the system and its libraries hand out more or less memory each time."""
    found = sorted((peak_in_a_process(what, task) for _ in range(repeats)), key=_used)
    return {**found[repeats // 2], "every_used": [_used(each) for each in found]}


def _used(found: Mapping[str, int]) -> int:
    return found["peak"] - found["before"]


def measured() -> None:
    """In the process of its own: read the task, do it, say how much memory it took."""
    task, original, splits, method = given()
    bring(original, splits, method, torch.device("cpu"))
    gc.collect()
    before, _ = _resident()
    use(task["what"], original, splits, method, task["seed"], torch.device("cpu"))
    print(json.dumps({"before": before, "peak": _resident()[1]}))


def _resident() -> tuple[int, int]:
    """Bytes of this process in memory: now, and at most so far."""
    status = Path("/proc/self/status")
    if status.is_file():  # of this program alone: the figure of `resource` begins with that of the parent
        lines = dict(line.split(":", 1) for line in status.read_text(encoding="utf-8").splitlines() if ":" in line)
        return tuple(int(lines[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))  # type: ignore[return-value]
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return peak, peak


def compare_memory(fine_tuning: Mapping[str, Any], ours: Mapping[str, Any], weights: int) -> dict[str, Any]:
    """What both used beyond what was there before, and what ours may use: fine-tuning plus one copy of the weights.

    >>> compare_memory({"before": 10, "peak": 110}, {"before": 10, "peak": 130}, weights=20)["share_of_allowed"]
    0.952...
    """
    used = {"fine-tuning": _used(fine_tuning), "ours": _used(ours)}
    allowed = SLACK * (used["fine-tuning"] + weights)
    return {
        "weights": weights,
        "fine-tuning": dict(fine_tuning),
        "ours": dict(ours),
        "used": used,
        "allowed": allowed,
        "share_of_allowed": used["ours"] / allowed if allowed > 0 else None,
    }
