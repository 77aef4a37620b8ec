"""`forget`: copy a trained classifier, run Alg. 1 on the copy, measure it as it goes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from famr.batches import EVALUATION_BATCH, Batches, LabelledImages, image_batches, loader_batches
from famr.data import Images
from famr.devices import pick_device, repeatable
from famr.errors import RequestError
from famr.evaluation import collect, score
from famr.forget_loss import ForgetLoss, forget_loss
from famr.method import FAMR
from famr.models import Classifier
from famr.objective import drift_bound, l2_penalty
from famr.optimise import Epoch, Step, minimise, trainable
from famr.request import Request, Splits


@dataclass(frozen=True)
class HistoryRow:
    """The state after an epoch; row 0 is before the first step. Losses are over the whole forget set."""

    epoch: int
    step: int
    loss_forget: float
    loss_anchor: float
    loss_total: float
    drift: float
    retain_accuracy: float | None
    forget_accuracy: float | None
    forget_cross_entropy: float | None
    forget_entropy: float
    forget_kl: float
    style_distance: float | None
    seconds: float


@dataclass(frozen=True, eq=False)
class Unlearned:
    """The outcome: a new classifier, the untouched original, and how one became the other."""

    model: Classifier
    original: Classifier
    request: Request
    method: FAMR
    seed: int
    history: tuple[HistoryRow, ...]
    device: str

    @property
    def module(self) -> nn.Module:
        """The unlearned network itself."""
        return self.model.module

    @property
    def seconds(self) -> float:
        """Time spent in the steps of Alg. 1, measuring not counted."""
        return self.history[-1].seconds

    @property
    def drift(self) -> float:
        """‖θ − θ₀‖."""
        return self.history[-1].drift

    @property
    def drift_bound(self) -> float | None:
        """The bound on the drift [FAMR, App. Prop. 1]; None where J did not decrease."""
        first, last = self.history[0], self.history[-1]
        if last.loss_total > first.loss_total:
            return None
        return drift_bound(first.loss_forget, last.loss_forget, self.method.strength)

    def save(self, output_dir: str | Path, *, overwrite: bool = False) -> Path:
        """Write a run folder that loads where the original did."""
        from famr.runs import save_unlearned

        return save_unlearned(self, Path(output_dir), overwrite=overwrite)

    def to_json(self) -> dict[str, Any]:
        """What run.json says about the optimisation."""
        return {
            "method": {"name": "FAMR", **self.method.to_json()},
            "seed": self.seed,
            "device": self.device,
            "epochs": self.history[-1].epoch,
            "steps": self.history[-1].step,
            "seconds": self.seconds,
            "drift": self.drift,
            "drift_bound": self.drift_bound,
        }


Event = Step | HistoryRow


def forget(
    model: Classifier | nn.Module,
    splits: Splits | None = None,
    method: FAMR | None = None,
    *,
    forget: Iterable[LabelledImages] | None = None,
    style_target: Images | Iterable[LabelledImages] | None = None,
    seed: int = 0,
    device: str | None = None,
    track_retain: bool = True,
    on_event: Callable[[Event], None] | None = None,
) -> Unlearned:
    """Make a copy of `model` forget; the model itself is not changed.

    Give either `splits`, or `forget`: any iterable of (images, labels) as the network takes them; it is read once
    and its batches are kept. `style_target`
    are images of a neutral style (default: the retained images). `track_retain` measures retained accuracy after
    each epoch, which costs a pass over the test images and is not counted in `seconds`.
    """
    method = method or FAMR()
    original = model if isinstance(model, Classifier) else Classifier(model)
    home = next(original.module.parameters()).device
    place = pick_device(device or ("auto" if home.type == "cpu" else str(home)))
    unlearned = original.copy()
    unlearned.module.to(place).eval()
    sets = _prepare(unlearned, splits, forget, style_target, method, place)
    with repeatable(seed), forget_loss(unlearned, method, sets.forget, sets.neutral, place) as loss:
        history = tuple(_run(loss, sets, seed, track_retain, on_event))
    unlearned.module.to(home)
    request = Request() if splits is None else splits.request
    return Unlearned(unlearned, original, request, loss.method, seed, history, str(place))


@dataclass(frozen=True, eq=False)
class _Sets:
    """The passes a run makes over its images."""

    steps: Batches
    forget: Batches
    test: Batches | None
    neutral: Batches | None


def _prepare(
    model: Classifier,
    splits: Splits | None,
    loader: Iterable[LabelledImages] | None,
    style_target: Images | Iterable[LabelledImages] | None,
    method: FAMR,
    device: torch.device,
) -> _Sets:
    if (splits is None) == (loader is None):
        raise RequestError("Give either `splits` or `forget=`, and not both.", where="famr.forget")
    if splits is not None and splits.request.kind == "style" and not method.forgets_style:
        raise RequestError(
            "A style request needs β > 0 and a style layer.",
            where=splits.request.describe(),
            fix="FAMR(beta=None, style_layer=…), or --style-layer on the command line.",
        )
    neutral, test = style_target, None
    if loader is not None:
        steps = forget = loader_batches(loader, device)
    else:
        assert splits is not None
        steps = image_batches(splits.forget, model.prepared_by(), method.batch_size, device)
        forget = image_batches(splits.forget, model.prepared_by(), EVALUATION_BATCH, device)
        if splits.test is not None:
            test = image_batches(splits.test, model.prepared_by(), EVALUATION_BATCH, device)
        neutral = splits.retain if neutral is None else neutral
    if isinstance(neutral, Images):
        return _Sets(steps, forget, test, image_batches(neutral, model.prepared_by(), EVALUATION_BATCH, device))
    return _Sets(steps, forget, test, None if neutral is None else loader_batches(neutral, device))


def _run(
    loss: ForgetLoss,
    sets: _Sets,
    seed: int,
    track_retain: bool,
    on_event: Callable[[Event], None] | None,
) -> Iterator[HistoryRow]:
    """Alternate between an epoch of Alg. 1 and a look at where it got to."""
    module = loss.model.module
    start = [parameter.detach().clone() for parameter in trainable(module)]  # θ₀
    original, *_ = loss.measure(sets.forget(None))

    def look(epoch: Epoch) -> HistoryRow:
        answers, kl, style = loss.measure(sets.forget(None))
        test = None
        if sets.test is not None and track_retain:
            test = collect(loss.model, sets.test(None), loss.device, loss.method.precision)
        found = score(answers, original, test, None)
        penalty = float(l2_penalty(trainable(module), start))
        forget_loss, anchor_loss = float(loss.combined(kl, style)), loss.method.strength * penalty
        row = HistoryRow(
            epoch=epoch.epoch,
            step=epoch.steps,
            loss_forget=forget_loss,
            loss_anchor=anchor_loss,
            loss_total=forget_loss + anchor_loss,
            drift=(2 * penalty) ** 0.5,
            retain_accuracy=found.retain_accuracy,
            forget_accuracy=found.forget_accuracy,
            forget_cross_entropy=found.forget_cross_entropy,
            forget_entropy=found.forget_entropy,
            forget_kl=float(found.forget_kl or 0.0),
            style_distance=None if style is None else float(style.mean()),
            seconds=epoch.seconds,
        )
        if on_event is not None:
            on_event(row)
        return row

    yield look(Epoch(epoch=0, steps=0, seconds=0.0))
    for epoch in minimise(module, start, loss, sets.steps, loss.method, seed, on_event):
        yield look(epoch)


def history_lines(history: Iterable[HistoryRow]) -> list[dict[str, Any]]:
    """One plain dictionary an epoch, as history.jsonl stores it."""
    return [asdict(row) for row in history]
