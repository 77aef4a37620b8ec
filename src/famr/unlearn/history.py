"""A run as it is followed: an epoch of Alg. 1, a look at where it got to, and so on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass

from famr.anchors import AnchorTerm, WeightAnchor
from famr.engine.distributed import number
from famr.errors import NumericsError
from famr.losses.objective import l2_penalty
from famr.metrics.scores import score
from famr.models.layers import trainable
from famr.unlearn.forget_loss import ForgetLoss, Passes
from famr.unlearn.loop import Epoch, Step, minimise
from famr.unlearn.progress import Progress


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


Event = Step | HistoryRow


def followed(
    loss: ForgetLoss,
    passes: Passes,
    anchors: Sequence[AnchorTerm],
    seed: int,
    track_retain: bool,
    most: int,
    on_event: Callable[[Event], None] | None,
    progress: Progress,
    hurried: AbstractContextManager[None],
    spent: Callable[[], float],
    measuring: list[float],
) -> Iterator[HistoryRow]:
    """Alternate between an epoch of Alg. 1 and a look at where it got to; rows from before a break are as they were.

    Inside `hurried` the steps are fast. What was spent on that is counted with them: the walk through a frozen front,
    the wait for kernels. What looking takes is added to `measuring`.
    """
    module = loss.model.module
    parameters = trainable(module)
    weights = anchors[0].anchor
    assert isinstance(weights, WeightAnchor)

    @contextmanager
    def aside() -> Iterator[None]:
        """What happens inside is measuring, but for what makes steps fast and is done on the way."""
        since = time.perf_counter() - spent()
        yield
        measuring.append(time.perf_counter() - spent() - since)

    with aside():
        before = loss.measure(passes.forget(None))
    original = before[0]

    @aside()
    def look(epoch: Epoch) -> HistoryRow:
        answers, kl, style = before if epoch.steps == 0 else loss.measure(passes.forget(None))
        found = score(answers, original, loss.held_out(passes) if track_retain else None, None)
        forget_loss = float(loss.combined(kl, style))
        anchor_loss = sum(strength * number(anchor.penalty(parameters)) for anchor, strength in anchors)
        row = HistoryRow(
            epoch=epoch.epoch,
            step=epoch.steps,
            loss_forget=forget_loss,
            loss_anchor=anchor_loss,
            loss_total=forget_loss + anchor_loss,
            drift=number(2 * l2_penalty(parameters, weights.original)) ** 0.5,  # ‖θ − θ₀‖
            retain_accuracy=found.retain_accuracy,
            forget_accuracy=found.forget_accuracy,
            forget_cross_entropy=found.forget_cross_entropy,
            forget_entropy=found.forget_entropy,
            forget_kl=float(found.forget_kl or 0.0),
            style_distance=None if style is None else float(style.mean()),
            seconds=epoch.seconds,
        )
        if wrong := [name for name, value in asdict(row).items() if value is not None and not math.isfinite(value)]:
            raise NumericsError(
                f"The model's answers are not finite numbers: {', '.join(wrong)}.",
                where=f"after epoch {row.epoch}" if row.epoch else "before the first step",
                fix="Lower the learning rate. Nothing was written; the original is unchanged.",
            )
        if on_event is not None:
            on_event(row)
        return row

    last = loss.method.settled_epochs
    apart, ends = -(-last // most), (1, last) if most > 1 else (last,)
    begun, rows = progress.begun()
    with hurried:
        if begun is None:
            begun = Epoch(epoch=0, steps=0, seconds=spent())
        history = [HistoryRow(**row) for row in rows] or [look(begun)]
        yield from history
        steps = passes.steps_per_epoch
        for epoch in minimise(
            module, anchors, loss, passes.steps, steps, loss.method, seed, on_event, begun, loss.ranks
        ):
            looked = epoch.epoch % apart == 0 or epoch.epoch in ends
            if looked:
                history.append(look(epoch))
            progress.keep(epoch, history)
            if looked:
                yield history[-1]
