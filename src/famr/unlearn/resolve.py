"""Defaults: what open settings of `FAMR` become, by the kind of request and by the available data.

The numbers were tuned on classes and styles that no committed result reports; docs/method.md, "What was tried", has the
trials behind them.
"""

from __future__ import annotations

from famr.anchors import ANCHORS
from famr.config import FAMR, ResolvedFAMR
from famr.data.request import Kind
from famr.engine.base import Engine
from famr.errors import RequestError
from famr.optim import OPTIMISERS, UpdateRule
from famr.targets import TARGETS
from famr.unlearn.inputs import Available

LATE_SHARE = 0.25
"""The share of the layers that a natural step edits: the last quarter kept more than half of them (0.3 points) or all
(several points on digits)."""
NATURAL_STEPS, OTHER_STEPS = 48, 100
"""Steps of a whole run, about."""
PROXY_STEPS = 150
"""The same for a proxy's target with natural steps: it takes more of them to arrive."""
SAMPLE_EPOCHS = 8
"""Passes at least over samples: the average gap to retraining is 0.030 after two, 0.024 after four, 0.016 after 8."""
SAMPLE_RATE = 2e-4
"""η of Adam for samples: twice the usual η keeps more test accuracy (86.0 instead of 85.5 %) at the same forgetting."""
SAMPLE_OVERSHOOT = 0.2
"""κ for samples: a run covers 87 % of the way to its target; aiming further brings the average gap to 0.011."""
STYLE_EPOCHS, STYLE_FUNCTION_STRENGTH = 24, 10.0
"""Passes at least over a style, and λ of its function-space anchor: 12 passes lose a point and a half of the other
styles with λ = 2 and one point with λ = 5; 24 passes with λ = 10 lose about half a point at the same Gram distance."""
FUNCTION_IMAGES = 20
"""Retained images a class for the function-space anchor of a natural step."""
WATCHED_SHARE = 0.1
"""The share of a retained class that is not anchored, so that the run can be watched on it."""


def resolve(method: FAMR, available: Available, engine: Engine) -> tuple[ResolvedFAMR, str]:
    """Fill in every open setting.

    Args:
        method: As the user wrote it.
        available: The available data.
        engine: Computes the run.

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
    style = method.forgets_style
    optimiser = _optimiser(available) if method.optimiser == "auto" else method.optimiser
    rule, samples = OPTIMISERS[optimiser], optimiser == "adam" and available.kind == "samples"
    steps_per_epoch = available.steps(method.batch_size)
    least = STYLE_EPOCHS if style else SAMPLE_EPOCHS
    share = LATE_SHARE if rule.uses_metric and not style else 1.0  # a style is read off early layers

    target, why_target = _target(method, available, engine)
    proxied = TARGETS[target].needs_proxy
    natural_steps = PROXY_STEPS if proxied else NATURAL_STEPS
    epochs = method.epochs or enough_epochs(steps_per_epoch, rule.uses_metric, least, natural_steps)
    demotion, why_demotion = _demotion(method, target, available.kind)
    edited_share = _given(method.edited_share, share)
    anchor, why_anchor = _anchor(method, available, engine, rule, edited_share)
    images_seen = epochs * steps_per_epoch * method.batch_size
    usual_strength = STYLE_FUNCTION_STRENGTH if optimiser == "adam" and style else rule.function_strength
    function_strength, function_images, why_function = _function_anchor(
        method, available, rule, usual_strength, images_seen
    )
    metric = ANCHORS[anchor]
    first_strength = metric.strength_as_metric if rule.uses_metric else metric.strength_as_penalty
    config = ResolvedFAMR(
        effort="thorough" if proxied else "quick",
        target=target,
        temperature=method.temperature if TARGETS[target].has_temperature else None,
        overshoot=_given(method.overshoot, SAMPLE_OVERSHOOT if samples and not proxied else 0.0),
        demotion=demotion,
        anchor=anchor,
        strength=first_strength if method.strength == "auto" else float(method.strength),
        search=method.strength == "auto",
        budget=method.budget,
        fisher_images=method.fisher_images,
        function_strength=function_strength,
        function_images=function_images,
        edited_share=edited_share,
        # with a free head the cheapest way to forget a class is to lower its row: the features keep it
        edit_head=not rule.uses_metric if method.edit_head is None else method.edit_head,
        learning_rate=_given(method.learning_rate, SAMPLE_RATE if samples else rule.default_rate),
        epochs=epochs,
        batch_size=method.batch_size,
        optimiser=optimiser,
        reduction=method.reduction,
        alpha=method.alpha,
        beta=_given(method.beta, 1.0),
        balance_beta=method.beta is None,
        style_layer=method.style_layer,
        style_channels_last=method.style_channels_last,
        precision=method.precision or ("bf16" if engine.device.type == "cuda" else "fp32"),
    )
    return config, "; ".join(why for why in (why_target, why_demotion, why_anchor, why_function) if why)


def enough_epochs(steps: int, natural: bool, least: int = SAMPLE_EPOCHS, natural_steps: int = NATURAL_STEPS) -> int:
    """Passes over the forget set: small sets are seen more often, for about 48 natural steps, or 100 others.

    Args:
        steps: Steps of one pass.
        natural: Whether they are natural steps.
        least: Passes at least, for other steps.
        natural_steps: Natural steps of a whole run.

    >>> [enough_epochs(steps, natural=True) for steps in (1, 4, 40)]
    [48, 12, 2]
    >>> [enough_epochs(steps, natural=False) for steps in (1, 4, 40)]
    [100, 25, 8]
    """
    return max(2, -(-natural_steps // steps)) if natural else max(least, -(-OTHER_STEPS // steps))


def _given(value: float | None, default: float) -> float:
    return default if value is None else value


def _optimiser(available: Available) -> str:
    """Samples and styles depend on all that a network has learnt: all of it must move, anchored on many images.

    Without retained images to anchor it on, a network moves in the metric of the weight anchor.
    """
    return "adam" if available.retained and available.kind in ("samples", "style") else "natural"


def _target(method: FAMR, available: Available, engine: Engine) -> tuple[str, str]:
    """Its name, and why it was picked."""
    needs_proxy = method.effort == "thorough" if method.target == "auto" else TARGETS[method.target].needs_proxy
    if needs_proxy and (available.proxy is None or engine.sharded):
        why = "the weights are divided among processes" if engine.sharded else available.no_proxy
        raise RequestError(
            f"There is no model that never saw the forget set, and none can be trained: {why}.",
            where=f"effort {method.effort}, target {method.target}",
            fix="Use --effort quick, or give the retained images, or a sketch with proxies (famr sketch).",
        )
    if method.target != "auto":
        return method.target, ""
    quick, why_quick = _quick_target(available)
    plan, device = available.proxy, engine.device.type
    if plan is None or engine.sharded or method.effort == "quick":
        return quick, why_quick
    if method.effort == "auto" and method.temperature is not None:  # a proxy's target has none
        return quick, why_quick
    costs = plan.describe(device)
    if method.effort == "thorough" or (plan.affordable(device) and available.kind != "style"):
        return "proxy", f"thorough: target proxy, nearer to a retrained model than {quick} ({costs})"
    return quick, f"quick: {why_quick}; --effort thorough is nearer to a retrained model ({costs})"


def _quick_target(available: Available) -> tuple[str, str]:
    """The target that takes the original's own predictions, and why."""
    calibrated = available.held_out or available.sketch
    if available.kind in ("class", "concept") and calibrated:
        return "masked", "target masked (whole classes: the remaining ones, entropy-matched to held-out mistakes)"
    if available.kind == "samples" and calibrated:
        return "reference", "target reference (single samples: as confident as on held-out images)"
    if available.kind == "style" and available.retained:
        why = "a style: the prediction of a classifier on mid-network features that never saw it"
        return "probe", f"target probe ({why})"
    return "uniform", "target uniform (the paper's: there is nothing to compare with)"


def _demotion(method: FAMR, target: str, kind: Kind) -> tuple[float, str]:
    """γ, and why it was picked."""
    default = TARGETS[target].default_demotion if kind in ("class", "concept") else None
    if method.demotion is None:
        return (
            (0.0, "") if not default else (default, f"demotion {default:g} (forgotten classes among the unlikely ones)")
        )
    if method.demotion and default is None:
        demoting = " or ".join(name for name, known in TARGETS.items() if known.default_demotion is not None)
        raise RequestError(
            f"A demotion is for whole classes, with the {demoting} target; this run has the {target} one, for {kind}.",
            where=f"demotion {method.demotion:g}",
            fix="Leave it out.",
        )
    return method.demotion, ""


def _anchor(
    method: FAMR, available: Available, engine: Engine, rule: type[UpdateRule], edited_share: float
) -> tuple[str, str]:
    """Its name, and why it was picked."""
    if method.anchor != "auto":
        if engine.sharded and ANCHORS[method.anchor].needs_whole_layers:
            raise RequestError(
                f"The {method.anchor} anchor needs whole layers, and --shard divides them.",
                where="anchor",
                fix="Use --anchor l2, or leave out --shard.",
            )
        return method.anchor, ""
    if engine.sharded:
        return "l2", "anchor l2 (the weights are divided among the processes)"
    if available.sketch:
        return "kfac", "anchor kfac (from the sketch)"
    if not available.retained:
        return "l2", "anchor l2 (the paper's: no retained images and no sketch)"
    if not rule.uses_metric:
        return "l2", "anchor l2 (weak: the function-space anchor keeps more)"
    if edited_share < 1 and method.function_strength != 0:
        return "l2", "anchor l2 (late layers change under a function-space anchor: that is enough)"
    return "kfac", "anchor kfac (from retained images)"


def _function_anchor(
    method: FAMR, available: Available, rule: type[UpdateRule], usual_strength: float, images_seen: int
) -> tuple[float, int, str]:
    """λ of the function-space anchor, its images a class, and why they were picked."""
    strength = _given(method.function_strength, usual_strength if available.retained else 0.0)
    if not strength:
        return 0.0, 0, ""
    per_class = method.function_images or _anchored_per_class(available, images_seen, rule.uses_metric)
    why = (
        "" if method.function_strength is not None else f"function-space anchor on {per_class} retained images a class"
    )
    return strength, per_class, why


def _anchored_per_class(available: Available, images_seen: int, natural: bool) -> int:
    """As many retained images of each class as the steps can use; natural steps need a few."""
    if not available.classes:
        return FUNCTION_IMAGES
    most = FUNCTION_IMAGES if natural else int((1 - WATCHED_SHARE) * available.fewest)
    return max(1, min(-(-images_seen // available.classes), most))
