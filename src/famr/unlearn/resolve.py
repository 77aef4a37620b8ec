"""What `FAMR()` does where nobody says: target and anchors by the kind of request and by the data at hand."""

from __future__ import annotations

from dataclasses import dataclass, replace

from famr.config import FAMR, Metric, Optimiser
from famr.data.request import Kind
from famr.errors import RequestError
from famr.targets.distributions import Target

FUNCTION_STRENGTH = {"natural": 5.0, "sgd": 1.0, "adam": 2.0, "adamw": 2.0}
FUNCTION_IMAGES = 20
LATE = 0.25
DEMOTION = 0.03
RATES = {"natural": 0.5, "sgd": 1e-4, "adam": 1e-4, "adamw": 1e-4}
SAMPLE_RATE = 2e-4
SAMPLE_EPOCHS = 8
SAMPLE_OVERSHOOT = 0.2
STYLE_FUNCTION_STRENGTH = 10.0
STYLE_EPOCHS = 24
WATCHED = 0.1
"""The share of a retained class that holds nothing, so that a run can be watched on it."""


@dataclass(frozen=True)
class AtHand:
    """What a run has besides the forget images."""

    kind: Kind
    retained: bool
    held_out: bool
    sketch: bool
    batches: int
    """Steps of one pass over the forget set."""
    classes: int = 0
    """Classes with retained images, as far as that is known."""
    fewest: int = 0
    """Retained images of the smallest of them."""
    cuda: bool = False
    """Whether the network runs on a CUDA device."""
    sharded: bool = False
    """Whether its weights lie in parts on several ranks."""


def enough_epochs(batches: int, optimiser: Optimiser, at_least: int = 8) -> int:
    """Passes over the forget set: small sets are seen more often, for about 48 natural steps, or 100 of another kind.

    >>> [enough_epochs(batches, "natural") for batches in (1, 4, 40)]
    [48, 12, 2]
    >>> [enough_epochs(batches, "adam") for batches in (1, 4, 40)]
    [100, 25, 8]
    """
    if optimiser == "natural":
        return max(2, -(-48 // batches))
    return max(at_least, -(-100 // batches))


def settle(method: FAMR, at_hand: AtHand) -> tuple[FAMR, str]:
    """Fill in what the method leaves open; and say in one line which target and anchors were picked, and why."""
    optimiser = _optimiser(at_hand) if method.optimiser == "auto" else method.optimiser
    natural, adam = optimiser == "natural", optimiser == "adam"
    samples, style = adam and at_hand.kind == "samples", adam and method.forgets_style
    method = replace(method, optimiser=optimiser)
    if method.epochs is None:
        at_least = STYLE_EPOCHS if method.forgets_style else SAMPLE_EPOCHS
        method = replace(method, epochs=enough_epochs(at_hand.batches, optimiser, at_least))
    if method.learning_rate is None:
        method = replace(method, learning_rate=SAMPLE_RATE if samples else RATES[optimiser])
    if method.overshoot is None:
        method = replace(method, overshoot=SAMPLE_OVERSHOOT if samples else 0.0)
    if method.edited_share is None:  # a style is read off early layers, which must then be free to change
        method = replace(method, edited_share=LATE if natural and not method.forgets_style else 1.0)
    if method.edit_head is None:
        method = replace(method, edit_head=not natural)
    if method.precision is None:
        method = replace(method, precision="bf16" if at_hand.cuda else "fp32")
    reasons, held = [], False
    if method.target == "auto":
        target, why = _target(at_hand)
        method = replace(method, target=target)
        reasons.append(f"target {target} ({why})")
    if method.demotion is None:
        method = replace(method, demotion=DEMOTION if method.target == "masked" else 0.0)
        reasons += [f"demotion {DEMOTION:g} (the forgotten among the unlikely answers)"] if method.demotion else []
    if method.demotion and method.target != "masked":
        raise RequestError(
            f"A demotion goes with the masked target, and this run has the {method.target} one.",
            where=f"demotion {method.demotion:g}",
            fix="Leave it out; it is for whole classes that are to look as if they were never seen.",
        )
    if method.anchor == "auto":
        anchor, why = _anchor(at_hand, method)
        method = replace(method, anchor=anchor)
        reasons.append(f"anchor {anchor} ({why})")
    if method.function_strength is None:
        firm = STYLE_FUNCTION_STRENGTH if style else FUNCTION_STRENGTH[optimiser]
        method = replace(method, function_strength=firm if at_hand.retained else 0.0)
        held = at_hand.retained
    if method.function_strength and method.function_images is None:
        method = replace(method, function_images=_held_a_class(method, at_hand))
    if held:
        reasons.append(f"answers held on {method.function_images} retained images a class")
    return method, "; ".join(reasons)


def _target(at_hand: AtHand) -> tuple[Target, str]:
    knows = at_hand.held_out or at_hand.sketch
    if at_hand.kind in ("class", "concept") and knows:
        return "masked", "whole classes: what is left when they are gone, as unsure as the model is when wrong"
    if at_hand.kind == "samples" and knows:
        return "reference", "single samples: as sure as of held-out images"
    if at_hand.kind == "style" and at_hand.retained:
        return "probe", "a style: what a classifier on mid-network features says that never saw it"
    return "uniform", "the paper's: there is nothing to compare with"


def _anchor(at_hand: AtHand, method: FAMR) -> tuple[Metric, str]:
    if at_hand.sharded:
        return "l2", "the weights are divided among the processes"
    if at_hand.sketch:
        return "kfac", "from the sketch"
    if not at_hand.retained:
        return "l2", "the paper's: no retained images and no sketch"
    if method.optimiser != "natural":
        return "l2", "weak: retained answers are held, and hold better"
    if method.settled_share < 1 and method.function_strength != 0:
        return "l2", "late layers move, and retained answers are held: that is enough"
    return "kfac", "from retained images"


def _optimiser(at_hand: AtHand) -> Optimiser:
    """Samples and styles run through everything a network has learnt: all of it must move, and be held on many images.

    What has no retained images to be held on moves in the metric of the anchor.
    """
    return "adam" if at_hand.retained and at_hand.kind in ("samples", "style") else "natural"


def _held_a_class(method: FAMR, at_hand: AtHand) -> int:
    """As many retained images of each class as the steps can see. Natural steps need but a few; with many classes all
    of a few would be more than are ever drawn. From other steps some of each class are kept, to watch the run on."""
    if not at_hand.classes:
        return FUNCTION_IMAGES
    seen = -(-method.settled_epochs * at_hand.batches * method.batch_size // at_hand.classes)
    most = FUNCTION_IMAGES if method.optimiser == "natural" else int((1 - WATCHED) * at_hand.fewest)
    return max(1, min(seen, most))
