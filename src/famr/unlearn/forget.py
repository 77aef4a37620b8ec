"""`forget`: copy a trained classifier, run Alg. 1 on the copy, measure it as it goes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from famr.anchors.choose import anchors_for
from famr.config import FAMR
from famr.data import Images
from famr.data.loaders import LabelledImages
from famr.data.request import Request
from famr.data.splits import EarlierRequest, Splits
from famr.engine.at_work import begin_anew, from_work, require_divisible, to_work, what_is_seen, working_place
from famr.engine.attention import attention_for
from famr.engine.devices import deterministic
from famr.engine.distributed import ALONE, Ranks
from famr.engine.finite import name_bad_images
from famr.engine.graphs import aside
from famr.engine.kernels import get_ready, waited
from famr.engine.lean import lean_pays
from famr.engine.prefix import Front
from famr.engine.unread import Unread
from famr.engine.waking import FEW, Coming, looking
from famr.errors import RequestError
from famr.losses.objective import drift_bound
from famr.metrics.scores import Scores
from famr.models import Classifier
from famr.models.labels import require_same_labels
from famr.models.layers import trainable
from famr.runs.resume import ResumeState
from famr.unlearn.forget_loss import ForgetLoss, Passes, forget_loss
from famr.unlearn.history import Event, HistoryRow, followed
from famr.unlearn.progress import Progress
from famr.unlearn.resolve import settle
from famr.unlearn.search import Outcome, predicted_drift, require_outcome, seek_strength
from famr.unlearn.setting import behind, edited, front_of, passes_of, shape_of_one, shown_of, what_is_at_hand
from famr.unlearn.sketch import Sketch
from famr.unlearn.watch import accuracy_now, watched_images


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
    why: str = ""
    """What was picked where the method left it open, and why; empty where it did not."""
    trials: tuple[Outcome, ...] = ()
    """The strengths that were tried, the last one being this run's; empty where it was given."""
    classes: tuple[str, ...] = ()
    """The classes that were forgotten whole, by name."""
    earlier: tuple[EarlierRequest, ...] = ()
    """What the model had been made to forget before."""
    ranks: Ranks = ALONE
    """The processes that shared the work, as the one that tells saw them."""
    seconds_of_all: float | None = None
    """Time spent on all of it once the model was on its device: targets, anchors, images that were not read before,
    every strength that was tried. Measuring is not counted. None where a run went on from an earlier one's state."""
    first_token: tuple[str, ...] = ()
    """Layers that saw the first token of an image alone in the steps: nobody reads what they say about the others."""

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
        """The bound on the drift [FAMR, App. Prop. 1]; None where J did not
        decrease, or where another metric than ℓ₂ holds the weights."""
        first, last = self.history[0], self.history[-1]
        penalised = self.method.optimiser != "natural" and self.method.anchor == "l2"
        if last.loss_total > first.loss_total or not penalised:
            return None
        return drift_bound(first.loss_forget, last.loss_forget, self.method.settled_strength)

    def save(self, output_dir: str | Path, *, scores: Scores | None = None, overwrite: bool = False) -> Path:
        """Write a run folder that loads where the original did; with `scores` also metrics.json."""
        from famr.runs.folder import save_unlearned

        return save_unlearned(self, Path(output_dir), scores=scores, overwrite=overwrite)

    def to_json(self) -> dict[str, Any]:
        """What run.json says about the optimisation."""
        return {
            "method": {"name": "FAMR", **self.method.to_json()},
            "seed": self.seed,
            "device": self.device,
            "processes": self.ranks.size,
            "sharded": self.ranks.sharded,
            "epochs": self.history[-1].epoch,
            "steps": self.history[-1].step,
            "seconds": self.seconds,
            "seconds_of_all": self.seconds_of_all,
            "drift": self.drift,
            "drift_of_all_runs_at_most": self.drift + sum(run.drift for run in self.earlier),
            "drift_bound": self.drift_bound,
            "why": self.why,
            "trials": [asdict(trial) for trial in self.trials],
            "classes": list(self.classes),
            "earlier": [run.to_json() for run in self.earlier],
        }


ROWS = 50
"""About the most rows of a history, where nobody says: with more epochs some are looked at, evenly."""


def forget(
    model: Classifier | nn.Module,
    splits: Splits | None = None,
    method: FAMR | None = None,
    *,
    forget: Iterable[LabelledImages] | None = None,
    style_target: Images | Iterable[LabelledImages] | None = None,
    anchor_images: Images | Iterable[LabelledImages] | None = None,
    sketch: Sketch | None = None,
    seed: int = 0,
    device: str | None = None,
    track_retain: bool = True,
    rows: int = ROWS,
    gates: bool = False,
    resume_state: ResumeState | None = None,
    on_event: Callable[[Event], None] | None = None,
    ranks: Ranks = ALONE,
) -> Unlearned:
    """Make a copy of `model` forget; the model itself is not changed.

    Give either `splits`, or `forget`: any iterable of (images, labels) as the network takes them; it is read once
    and its batches are kept. `style_target`
    are images of a neutral style, `anchor_images` those from which anchors are taken that need some (default for
    both: the retained images). `sketch` gives what anchors and targets need of the training data, taken earlier.
    `track_retain` measures retained accuracy after each epoch, on at most 2,000 held-out images, the same all along;
    that is not counted in `seconds`. `rows`: about so many epochs are looked at, the first and the last among them;
    with 1 the last alone. With `gates` a run that did nothing or destroyed the model is a GateError; where the strength
    is left to `forget`, one that stays outside the budget always is. `resume_state` keeps the state of the run, and goes
    on from it where it was begun before. `ranks` are processes that share the work, each calling this alike.
    """
    if splits is not None and not isinstance(splits, Splits):
        raise RequestError(
            f"The second argument must be Splits, got {type(splits).__name__}.",
            where="famr.forget",
            fix="forget=loader",
        )
    if rows < 1:
        raise RequestError(f"`rows` must be at least 1, got {rows!r}.", where="famr.forget")
    original = model if isinstance(model, Classifier) else Classifier(model)
    home = next(original.module.parameters()).device
    place = working_place(device, home, ranks)
    if splits is not None:
        require_same_labels(original, splits)
    if sketch is not None:
        sketch.check(original)
    unlearned = original.copy()
    with ranks.together():
        forget = list(forget) if forget is not None and ranks.size > 1 else forget
        passes = passes_of(unlearned, splits, forget, style_target, method or FAMR(), place, ranks)
    at_hand = what_is_at_hand(splits, anchor_images is not None, sketch, passes.steps_per_epoch)
    method, why = settle(method or FAMR(), replace(at_hand, cuda=place.type == "cuda", sharded=ranks.sharded))
    require_divisible(method, ranks)
    if sketch is not None:
        passes = replace(passes, remembered=sketch.held_out, forgets_classes=at_hand.kind in ("class", "concept"))
    with ranks.together():
        progress = Progress.begin(resume_state, original, splits, method, seed, place, ranks.size)
        went_on = progress.at() is not None
        settings = {"the method": method, "the seed": seed, "the unfinished run": progress.at()}
        seen = what_is_seen(original, splits, forget, settings) if ranks.size > 1 else {}
    ranks.agree(seen)
    to_work(unlearned.module, place, ranks)
    begun, measuring = time.perf_counter(), [0.0]
    lean = lean_pays(place) and ranks.size == 1
    if lean and method.settled_precision == "bf16":
        get_ready(unlearned.module)
    if splits is None:
        coming = Coming.of_batches([len(batch.images) for batch in passes.forget(None)], method)
    else:
        coming = Coming.of(len(splits.forget), method, place)
    soon = threading.Event()
    look = looking(unlearned, method, shape_of_one(unlearned, passes), place, lean, coming, soon)
    watched = watched_images(splits, method, seed) if gates or method.strength == "auto" else None

    before: list[float] = []  # the original's accuracy on these
    fronts: list[Front | None] = []  # found by the first attempt: what is frozen is so in all of them
    idle: list[Unread] = []
    asked: list[ForgetLoss] = []  # of the first attempt: all begin with the original, and aim where it said

    def attempt(firm: FAMR) -> tuple[Outcome, tuple[HistoryRow, ...], FAMR]:
        """One whole run from the original weights."""
        if asked:  # the first has them
            begin_anew(unlearned.module, original.module, ranks)
        since = waited()
        editing, named = edited(unlearned, passes, firm), name_bad_images(None if splits is None else splits.forget.ids)
        a_step = None if splits is None else firm.images_in_a_step(len(splits.forget))
        asking = replace(ForgetLoss.without_target(unlearned, firm, place, ranks, lean=lean), a_step=a_step)
        ahead = passes
        with aside(place), deterministic(seed), editing, named:
            if splits is not None:
                if not fronts:
                    source = splits.retain if anchor_images is None else anchor_images
                    fronts.append(front_of(asking, splits.forget, source))
                shown = shown_of(splits.test) if track_retain else None
                asking, ahead = behind(fronts[0], asking, passes, splits.forget, shown)
            with forget_loss(asking, ahead, asked[0] if asked else None) as loss:
                asked.append(loss)
                return run(loss, ahead, firm, since)

    def run(loss: ForgetLoss, ahead: Passes, firm: FAMR, since: float) -> tuple[Outcome, tuple[HistoryRow, ...], FAMR]:
        """The same, once it is known what the network is to answer."""
        if watched is not None and not before:
            before.append(accuracy_now(loss, watched))

        def unread() -> Unread:
            """What nobody reads; asked for as late as memory allows, as it is found beside other work."""
            soon.set()
            if not idle:
                idle.append(look(loss, ahead))
            return idle[0]

        if coming.images < FEW:
            unread()
        begins_as = None if ranks.sharded else original.module
        anchors = anchors_for(loss, splits, anchor_images, sketch, seed, begins_as)
        soon.set()

        @contextmanager
        def hurried() -> Iterator[None]:
            """Nothing is computed that nobody reads."""
            with unread().spared(unlearned.module), attention_for(loss.attention, firm.image_passes):
                yield

        def spent() -> float:
            """Seconds that went into what makes the steps fast."""
            front = 0.0 if loss.front is None else loss.front.seconds
            return waited() - since + front + sum(each.seconds for each in idle)

        rows_of = followed(
            loss, ahead, anchors, seed, track_retain, rows, on_event, progress, hurried(), spent, measuring
        )
        history = tuple(rows_of)
        first, last = history[0], history[-1]
        outcome = Outcome(
            strength=firm.settled_strength,
            function_strength=firm.function_strength or 0.0,
            loss_before=first.loss_forget,
            loss_after=last.loss_forget,
            forget_accuracy=last.forget_accuracy if passes.forgets_classes else None,
            chance=1 / loss.target.shape[-1] if firm.target == "uniform" else 0.0,
            retained_before=before[0] if before else None,
            retained_after=None if watched is None else accuracy_now(loss, watched),
            watched=None if watched is None else len(watched),
            predicted_drift=predicted_drift(anchors[0].anchor, trainable(unlearned.module)),
        )
        return outcome, history, loss.method

    if method.strength == "auto":
        trials, (history, settled) = seek_strength(progress.remembering(attempt), method)
    else:
        outcome, history, settled = attempt(method)
        trials = ()
        if gates:
            require_outcome(outcome)
    took = None if went_on else time.perf_counter() - begun - sum(measuring)
    unlearned = from_work(unlearned, original, home, ranks)
    result = Unlearned(unlearned, original, Request(), settled, seed, history, str(place), why, trials)
    result = replace(result, ranks=ranks, seconds_of_all=took, first_token=idle[0].layers)
    if splits is None:
        return result
    classes = splits.newly_forgotten_classes() if passes.forgets_classes else ()
    return replace(result, request=splits.request, classes=classes, earlier=splits.earlier)
