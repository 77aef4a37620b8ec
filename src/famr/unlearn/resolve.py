"""Defaults: what open settings of `FAMR` become, by the kind of request and by the available data."""

from __future__ import annotations

from famr.anchors import ANCHORS
from famr.config import FAMR, TEMPERED, ResolvedFAMR
from famr.engine.base import Engine
from famr.errors import RequestError
from famr.optim import OPTIMISERS
from famr.unlearn.inputs import Available

FUNCTION_IMAGES = 20
"""Retained images a class for the function-space anchor of a natural step."""
LATE_SHARE = 0.25
"""The share of the layers that a natural step edits."""
DEMOTION = 0.03
SAMPLE_RATE = 2e-4
"""η of Adam for samples."""
SAMPLE_EPOCHS = 8
SAMPLE_OVERSHOOT = 0.2
STYLE_FUNCTION_STRENGTH = 10.0
STYLE_EPOCHS = 24
WATCHED_SHARE = 0.1
"""The share of a retained class that is not anchored, so that a run can be watched on it."""


def resolve(method: FAMR, available: Available, engine: Engine) -> tuple[ResolvedFAMR, str]:
    """Fill in every open setting.

    Args:
        method: As the user wrote it.
        available: What the run has.
        engine: Where it runs.

    Returns:
        The settings, and one line that says which target and anchors were picked, and why; empty where none was open.

    Raises:
        RequestError: Settings do not fit together, or not with the request.
    """
    if available.kind == "style" and not method.forgets_style:
        raise RequestError(
            "A style request needs β > 0 and a style layer.",
            where="beta",
            fix="FAMR(beta=None, style_layer=…), or --style-layer on the command line.",
        )
    optimiser = _optimiser(available) if method.optimiser == "auto" else method.optimiser
    rule, reasons = OPTIMISERS[optimiser], []
    adam, style = optimiser == "adam", method.forgets_style
    samples = adam and available.kind == "samples"
    least = STYLE_EPOCHS if style else SAMPLE_EPOCHS
    epochs = method.epochs or enough_epochs(available.steps(method.batch_size), rule.uses_metric, least)
    late = LATE_SHARE if rule.uses_metric and not style else 1.0  # a style is read off early layers
    share = late if method.edited_share is None else method.edited_share

    target = method.target
    if target == "auto":
        target, why = _target(available)
        reasons.append(f"target {target} ({why})")
    demotion = method.demotion
    if demotion is None:
        demotion = DEMOTION if target == "masked" else 0.0
        reasons += [f"demotion {DEMOTION:g} (forgotten classes among the unlikely ones)"] if demotion else []
    if demotion and target != "masked":
        raise RequestError(
            f"A demotion goes with the masked target, and this run has the {target} one.",
            where=f"demotion {demotion:g}",
            fix="Leave it out; it is for whole classes that are to look as if they were never seen.",
        )
    anchor = method.anchor
    if anchor == "auto":
        anchor, why = _anchor(available, engine, method, rule.uses_metric, share)
        reasons.append(f"anchor {anchor} ({why})")
    function_strength = method.function_strength
    if function_strength is None:
        usual = STYLE_FUNCTION_STRENGTH if adam and style else rule.function_strength
        function_strength = usual if available.retained else 0.0
    function_images = 0
    if function_strength:
        steps = epochs * available.steps(method.batch_size)
        function_images = method.function_images or _anchored_per_class(
            available, steps * method.batch_size, rule.uses_metric
        )
        if method.function_strength is None:
            reasons.append(f"function-space anchor on {function_images} retained images a class")
    if engine.sharded and anchor != "l2":
        raise RequestError(
            f"The {anchor} anchor needs whole layers, and --shard divides them.",
            where="anchor",
            fix="Use --anchor l2, or leave out --shard.",
        )
    rate = SAMPLE_RATE if samples else rule.default_rate
    config = ResolvedFAMR(
        target=target,
        temperature=method.temperature if target in TEMPERED else None,
        match_entropy=target in TEMPERED and method.temperature is None,
        overshoot=(SAMPLE_OVERSHOOT if samples else 0.0) if method.overshoot is None else method.overshoot,
        demotion=demotion,
        anchor=anchor,
        strength=first_strength(optimiser, anchor) if method.strength == "auto" else float(method.strength),
        search=method.strength == "auto",
        budget=method.budget,
        fisher_images=method.fisher_images,
        function_strength=function_strength,
        function_images=function_images,
        edited_share=share,
        edit_head=not rule.uses_metric if method.edit_head is None else method.edit_head,
        learning_rate=rate if method.learning_rate is None else method.learning_rate,
        epochs=epochs,
        batch_size=method.batch_size,
        optimiser=optimiser,
        reduction=method.reduction,
        alpha=method.alpha,
        beta=1.0 if method.beta is None else method.beta,
        balance_beta=method.beta is None,
        style_layer=method.style_layer,
        style_channels_last=method.style_channels_last,
        precision=method.precision or ("bf16" if engine.device.type == "cuda" else "fp32"),
    )
    return config, "; ".join(reasons)


def first_strength(optimiser: str, anchor: str) -> float:
    """λ at which a search begins.

    Args:
        optimiser: Name in `OPTIMISERS`.
        anchor: Name in `ANCHORS`.
    """
    return ANCHORS[anchor].first_strength["natural" if OPTIMISERS[optimiser].uses_metric else "penalty"]


def enough_epochs(steps: int, natural: bool, least: int = SAMPLE_EPOCHS) -> int:
    """Passes over the forget set: small sets are seen more often, for about 48 natural steps, or 100 others.

    Args:
        steps: Of one pass.
        natural: Whether steps are natural ones.
        least: Passes at least, for other steps.

    >>> [enough_epochs(steps, natural=True) for steps in (1, 4, 40)]
    [48, 12, 2]
    >>> [enough_epochs(steps, natural=False) for steps in (1, 4, 40)]
    [100, 25, 8]
    """
    return max(2, -(-48 // steps)) if natural else max(least, -(-100 // steps))


def _target(available: Available) -> tuple[str, str]:
    calibrated = available.held_out or available.sketch
    if available.kind in ("class", "concept") and calibrated:
        return "masked", "whole classes: the remaining ones, entropy-matched to held-out mistakes"
    if available.kind == "samples" and calibrated:
        return "reference", "single samples: as confident as on held-out images"
    if available.kind == "style" and available.retained:
        return "probe", "a style: the prediction of a classifier on mid-network features that never saw it"
    return "uniform", "the paper's: there is nothing to compare with"


def _anchor(available: Available, engine: Engine, method: FAMR, natural: bool, edited_share: float) -> tuple[str, str]:
    if engine.sharded:
        return "l2", "the weights are divided among the processes"
    if available.sketch:
        return "kfac", "from the sketch"
    if not available.retained:
        return "l2", "the paper's: no retained images and no sketch"
    if not natural:
        return "l2", "weak: the function-space anchor keeps more"
    if edited_share < 1 and method.function_strength != 0:
        return "l2", "late layers change under a function-space anchor: that is enough"
    return "kfac", "from retained images"


def _optimiser(available: Available) -> str:
    """Samples and styles depend on all that a network has learnt: all of it must move, anchored on many images.

    What has no retained images to be anchored on moves in the metric of the weight anchor.
    """
    return "adam" if available.retained and available.kind in ("samples", "style") else "natural"


def _anchored_per_class(available: Available, images_seen: int, natural: bool) -> int:
    """As many retained images of each class as the steps can use. Natural steps need a few; from other steps some of
    each class are left out, to watch the run on."""
    if not available.classes:
        return FUNCTION_IMAGES
    most = FUNCTION_IMAGES if natural else int((1 - WATCHED_SHARE) * available.fewest)
    return max(1, min(-(-images_seen // available.classes), most))
