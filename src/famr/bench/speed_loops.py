"""The two loops that are compared: Alg. 1 as anybody would write it down, and `famr.forget`.

Both take the paper's steps in the same order of images, so that the weights they end with can be compared.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from famr.config import FAMR
from famr.data.loaders import image_batches, order
from famr.data.splits import Splits
from famr.engine.devices import Precision, autocast
from famr.engine.inference import predict_splits
from famr.evaluation.evaluate import compare_predictions
from famr.metrics.predictions import Predictions
from famr.metrics.tables import COLUMNS
from famr.models import Classifier
from famr.models.classifier import logits_of
from famr.unlearn.forget import forget
from famr.unlearn.loop import epoch_seed
from famr.unlearn.resolve import LATE

SETTLING = 2
"""Epochs at the start of a call that do not count as steady: there the device warms up, and steps are captured."""
TOLERANCE = {"fp32": 1e-3, "bf16": 5e-2}
"""How far the weights of both loops may lie apart, as a share of how far they went."""
POINTS = 0.002
"""By how much the accuracies of both loops may differ: 0.2 points, one image of 500."""


@dataclass(frozen=True, eq=False)
class Run:
    """One call of a loop: seconds of each epoch's steps, of the whole call, and the network it made."""

    epochs: tuple[float, ...]
    whole: float
    module: nn.Module
    ahead: float = 0.0
    """Seconds before the first step that save time in all of them."""
    first_token: tuple[str, ...] = ()
    """Layers that saw the first token of an image alone."""

    @property
    def steps(self) -> float:
        """Seconds of all steps, from the first on, and of what makes them short."""
        return self.ahead + sum(self.epochs)

    @property
    def steady(self) -> float:
        """Seconds of an epoch once the loop has settled."""
        return statistics.median(self.epochs[SETTLING:] or self.epochs)


def numbers(epochs: int, batch: int, precision: Precision) -> FAMR:
    """The paper's numbers at another batch size; its loss is a sum over the batch, so η makes up for its size."""
    paper = FAMR.paper()
    rate = paper.settled_rate * paper.batch_size / batch
    return replace(paper, epochs=epochs, batch_size=batch, precision=precision, learning_rate=rate)


def wait_for(device: torch.device) -> None:
    """Let a GPU finish before somebody looks at the clock."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def prepared_images(model: Classifier, splits: Splits, device: torch.device) -> Tensor:
    """Every image to forget, as the network takes it, on the device."""
    batches = image_batches(splits.forget, model.require_preprocessing(), 256, device)
    return torch.cat([batch.images for batch in batches(None)])


def plain_loop(module: nn.Module, images: Tensor, method: FAMR, seed: int) -> list[float]:
    """Alg. 1 in a dozen lines, on images that are prepared already; changes `module`. Seconds of each epoch."""
    device, rate, strength = images.device, method.settled_rate, method.settled_strength
    start = [parameter.detach().clone() for parameter in module.parameters()]
    seconds = []
    module.eval()
    for epoch in range(1, method.settled_epochs + 1):
        begun = time.perf_counter()
        for positions in torch.split(order(len(images), epoch_seed(seed, epoch)), method.batch_size):
            with autocast(device, method.settled_precision):
                logits = logits_of(module(images[positions.to(device)])).float()
            uniform = torch.full_like(logits, 1 / logits.shape[-1])
            loss = F.kl_div(F.log_softmax(logits, dim=-1), uniform, reduction="sum")
            module.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            with torch.no_grad():
                for parameter, original in zip(module.parameters(), start, strict=True):
                    gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                    parameter.sub_(rate * (gradient + strength * (parameter - original)))
        wait_for(device)
        seconds.append(time.perf_counter() - begun)
    return seconds


def run_plain(original: Classifier, images: Tensor, method: FAMR, seed: int) -> Run:
    """A call of the plain loop on a copy."""
    begun = time.perf_counter()
    module = original.copy().module.to(images.device)
    epochs = plain_loop(module, images, method, seed)
    whole = time.perf_counter() - begun
    return Run(tuple(epochs), whole, module.cpu())


def run_ours(original: Classifier, splits: Splits, method: FAMR, seed: int, device: torch.device) -> Run:
    """A call of `famr.forget`; its steps include what makes them fast, the whole call also what it measures."""
    begun = time.perf_counter()
    result = forget(original, splits, method, seed=seed, device=str(device), track_retain=False)
    whole = time.perf_counter() - begun
    ends = [row.seconds for row in result.history]
    epochs = tuple(after - before for before, after in pairwise(ends))
    return Run(epochs, whole, result.module, ahead=ends[0], first_token=result.first_token)


def feeding(original: Classifier, splits: Splits, batch: int, device: torch.device) -> float:
    """Seconds of a pass over the forget images without any step: what it costs to bring them to the network."""
    batches = image_batches(splits.forget, original.require_preprocessing(), batch, device)
    seconds = []
    for seed in range(4):
        begun = time.perf_counter()
        for _ in batches(seed):
            pass
        wait_for(device)
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds[1:])  # in the first the images are decoded and sent


def apart(first: nn.Module, second: nn.Module, original: nn.Module) -> float:
    """‖θ₁ − θ₂‖ / ‖θ₂ − θ₀‖: 0 where both loops ended with the same weights."""

    def distance(one: nn.Module, other: nn.Module) -> float:
        pairs = zip(one.parameters(), other.parameters(), strict=True)
        squares = [float((a.detach().double() - b.detach().double()).square().sum()) for a, b in pairs]
        return math.sqrt(sum(squares))

    return distance(first, second) / max(distance(second, original), 1e-30)


def metrics(original: Classifier, module: nn.Module, splits: Splits, device: torch.device) -> dict[str, float | None]:
    """The paper's metrics of a network that a loop made."""
    said = predict_splits(splits, replace(original, module=module), device)
    found = compare_predictions(predict_splits(splits, original, device), said, None, splits).unlearned
    return {name: getattr(found, name) for name in COLUMNS if name != "forget_test_accuracy"}


def compare_loops(
    original: Classifier, splits: Splits, method: FAMR, seed: int, device: torch.device, repeats: int
) -> dict[str, Any]:
    """Both loops in turn, as often as asked; who begins changes, so that neither gains from a machine's moods.

    Predictions that are nearly uniform have many near ties, which any rounding decides. Where the accuracies differ, the
    plain loop is run in fp32 as well: by how much it then differs from itself is what rounding alone does, and images
    whose answer that could have changed are left aside.
    """
    ours: list[Run] = []
    plain: list[Run] = []
    for turn in range(repeats):
        if turn % 2 == 0:
            ours.append(run_ours(original, splits, method, seed, device))
        images = prepared_images(original, splits, device)
        plain.append(run_plain(original, images, method, seed))
        del images
        if turn % 2 == 1:
            ours.append(run_ours(original, splits, method, seed, device))
    ends = {"ours": ours[-1].module, "plain": plain[-1].module}
    both = {name: metrics(original, module, splits, device) for name, module in ends.items()}
    gaps, decided = _gaps(both["ours"], both["plain"]), None
    if largest_of_accuracies(gaps) > POINTS and method.settled_precision != "fp32":
        full = run_plain(original, prepared_images(original, splits, device), replace(method, precision="fp32"), seed)
        both["plain_in_fp32"] = metrics(original, full.module, splits, device)
        said = [predict_splits(splits, replace(original, module=end), device) for end in (*ends.values(), full.module)]
        decided = {"forget_accuracy": ties_aside(*(each.forget for each in said))}
        if all(each.test is not None for each in said):
            decided["retain_accuracy"] = ties_aside(*(each.test for each in said if each.test is not None))
    steps = method.settled_epochs * -(-len(splits.forget) // method.batch_size)
    return {
        "sample_passes": method.settled_epochs * len(splits.forget),
        "steps": steps,
        "ours": _times(ours, steps),
        "plain": _times(plain, steps),
        "first_token": list(ours[-1].first_token),
        "ratio": statistics.median(one.steps / other.steps for one, other in zip(ours, plain, strict=True)),
        "steady_ratio": statistics.median(one.steady / other.steady for one, other in zip(ours, plain, strict=True)),
        "feeding_seconds_an_epoch": feeding(original, splits, method.batch_size, device),
        "agreement": {
            "weights_apart": apart(ours[-1].module, plain[-1].module, original.module),
            "tolerance": TOLERANCE[method.settled_precision],
            "original": metrics(original, original.module, splits, device),
            **both,
            "gap": gaps,
            "gap_of_rounding": _gaps(both["plain"], both["plain_in_fp32"]) if "plain_in_fp32" in both else None,
            "ties_aside": decided,
        },
    }


def ties_aside(ours: Predictions, plain: Predictions, exact: Predictions) -> dict[str, float | None]:
    """How far the accuracies of both loops are apart on images whose answer rounding does not decide, and their share.

    An image is decided where the plain loop puts the right class ahead or behind by more than rounding moved that lead
    on any of the images. Of no image, there is no gap.

    >>> logits = torch.tensor([[3.0, 0.0], [0.0, 2.0], [0.1, 0.0]])
    >>> labels = torch.tensor([0, 0, 0])
    >>> plain, exact = Predictions(logits, labels), Predictions(logits - torch.tensor([0.2, 0.0]), labels)
    >>> ties_aside(Predictions(logits + torch.tensor([9.0, 0.0]), labels), plain, exact)
    {'share': 0.6666666865348816, 'gap': 0.5}
    """
    leads = lead(plain)
    clear = leads.abs() > (leads - lead(exact)).abs().max()
    if not bool(clear.any()):
        return {"share": 0.0, "gap": None}
    right, expected = ((each[clear] > 0).float().mean() for each in (lead(ours), leads))
    return {"share": float(clear.float().mean()), "gap": float((right - expected).abs())}


def lead(said: Predictions) -> Tensor:
    """By how much the right class is ahead of the best other one; negative where it is behind."""
    own = said.logits.gather(1, said.targets[:, None])
    others = said.logits.scatter(1, said.targets[:, None], -math.inf)
    return own[:, 0] - others.amax(dim=1)


def late_layers(
    original: Classifier, splits: Splits, method: FAMR, seed: int, device: torch.device, repeats: int
) -> dict[str, Any]:
    """The same steps where only the layers may change that the default method edits."""
    late = replace(method, edited_share=LATE, edit_head=False)
    runs = [run_ours(original, splits, late, seed, device) for _ in range(repeats)]
    return _times(runs, method.settled_epochs * -(-len(splits.forget) // method.batch_size))


def _times(runs: Sequence[Run], steps: int) -> dict[str, Any]:
    """Seconds: the first call, every call's steps, the median of the whole calls, and a step once settled."""
    settled = statistics.median(run.steady for run in runs)
    return {
        "first": runs[0].steps,
        "calls": [run.steps for run in runs],
        "median": statistics.median(run.steps for run in runs),
        "whole_call": statistics.median(run.whole for run in runs),
        "step": settled * len(runs[0].epochs) / steps,
        "epoch": settled,
    }


def largest_of_accuracies(gaps: Mapping[str, float | None]) -> float:
    """The largest gap between two accuracies.

    >>> largest_of_accuracies({"retain_accuracy": 0.1, "forget_accuracy": None, "forget_kl": 3.0})
    0.1
    """
    return max(gap for name, gap in gaps.items() if name.endswith("accuracy") and gap is not None)


def _gaps(one: Mapping[str, float | None], other: Mapping[str, float | None]) -> dict[str, float | None]:
    return {name: _gap(one[name], other[name]) for name in one}


def _gap(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else abs(one - other)
