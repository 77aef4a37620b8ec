"""What `FAMR()` does where nobody says: target and anchors by the kind of request and by the data at hand."""

from __future__ import annotations

from dataclasses import dataclass, replace

from famr.method import FAMR, Metric
from famr.request import Kind
from famr.targets import Target

FUNCTION_STRENGTH = 5.0
STEPS = 48
LATE = 0.25
RATES = {"natural": 0.5, "sgd": 1e-4, "adam": 1e-5, "adamw": 1e-5}


@dataclass(frozen=True)
class AtHand:
    """What a run has besides the forget images."""

    kind: Kind
    retained: bool
    held_out: bool
    sketch: bool
    batches: int
    """Steps of one pass over the forget set."""
    cuda: bool = False
    """Whether the network runs on a CUDA device."""


def enough_epochs(batches: int) -> int:
    """Passes over the forget set that make about `STEPS` steps: small sets are seen more often; at least two.

    >>> enough_epochs(batches=4), enough_epochs(batches=1), enough_epochs(batches=40)
    (12, 48, 2)
    """
    return max(2, -(-STEPS // batches))


def settle(method: FAMR, at_hand: AtHand) -> tuple[FAMR, str]:
    """Fill in what the method leaves open; and say in one line which target and anchors were picked, and why."""
    if method.epochs is None:
        method = replace(method, epochs=enough_epochs(at_hand.batches))
    if method.learning_rate is None:
        method = replace(method, learning_rate=RATES[method.optimiser])
    if method.edited_share is None:  # a style is read off early layers, which must then be free to change
        method = replace(method, edited_share=1.0 if method.forgets_style else LATE)
    if method.precision is None:
        method = replace(method, precision="bf16" if at_hand.cuda else "fp32")
    reasons = []
    if method.target == "auto":
        target, why = _target(at_hand)
        method = replace(method, target=target)
        reasons.append(f"target {target} ({why})")
    if method.anchor == "auto":
        anchor, why = _anchor(at_hand)
        method = replace(method, anchor=anchor)
        reasons.append(f"anchor {anchor} ({why})")
    if method.function_strength is None:
        method = replace(method, function_strength=FUNCTION_STRENGTH if at_hand.retained else 0.0)
        if at_hand.retained:
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


def _anchor(at_hand: AtHand) -> tuple[Metric, str]:
    if at_hand.sketch:
        return "kfac", "from the sketch"
    if at_hand.retained:
        return "kfac", "from retained images"
    return "l2", "the paper's: no retained images and no sketch"
