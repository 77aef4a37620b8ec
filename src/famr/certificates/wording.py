"""Sentences of certificates by earlier versions of famr, and today's wording of each.

`famr certify --check` compares a stored certificate with a computed one, sentences included.
"""

from __future__ import annotations

from typing import Any

REWORDED = {
    "‖∇J(θ)‖: how far the result is from a resting point of the objective; 0 is Eq. (6).": (
        "‖∇J(θ)‖, the norm of the objective's gradient at the result; it is 0 at a stationary point, Eq. (6)."
    ),
    "The run's steps rest only where ∇J = 0.": "The update rule of the run is stationary only where ∇J = 0.",
    "The smallest eigenvalue of ∇²J(θ); above 0 at a resting point means a strict local minimum.": (
        "The smallest eigenvalue of ∇²J(θ); above 0 at a stationary point it means a strict local minimum."
    ),
    "No eigenvalue lies below the one that was found.": "No eigenvalue is smaller than the computed one.",
    "No eigenvalue lies below those that were found.": "No eigenvalue is smaller than the computed ones.",
    "The result is a resting point.": "The result is a stationary point.",
    "How far the exact resting point of J can be, where J is strongly convex around the result.": (
        "A bound on the distance to the stationary point of J, where J is strongly convex around the result."
    ),
    "the weights are held by another metric than ℓ₂, or the anchor is the metric of the step": (
        "the weight anchor is not an ℓ₂ penalty: it has another metric, or is the metric of the step"
    ),
    "max ‖p − q‖₁ over the forget images, q uniform; the bound is Pinsker's, image by image, and 2 is no answer in "
    "common.": (
        "max ‖p − q‖₁ over the forget images, q uniform; the bound is Pinsker's of each image, and 2 means disjoint "
        "distributions."
    ),
    "max ‖p − q‖₁ over the forget images, q the target of each image; the bound is Pinsker's, image by image, and 2 is "
    "no answer in common.": (
        "max ‖p − q‖₁ over the forget images, q the target of each image; the bound is Pinsker's of each image, and 2 "
        "means disjoint distributions."
    ),
    "How much one full-batch step from the result shrinks ‖∇J‖, against 1 − ηλ.": (
        "The factor by which a full-batch step from the result reduces ‖∇J‖, against 1 − ηλ."
    ),
    "App. Thm. 1 is about plain gradient steps with a penalty on the weights, which this run did not take": (
        "App. Thm. 1 is about plain gradient steps with a penalty on the weights, and the run took others"
    ),
    "the steps have no fixed η that could be compared": "the steps have no fixed η to compare",
    "L is nowhere larger on the way.": "L is not larger along the path of the run.",
    "The sketch stands for the curvature of the retained loss.": "The sketch has the curvature of the retained loss.",
    "‖θ − w*‖, all weights counted.": "‖θ − w*‖ over all weights.",
    "The data is what it was then.": "The data has not changed since.",
    "The starting weights did not see the removed images.": (
        "The initial weights were not trained on the removed images."
    ),
}


def in_current_wording(value: Any) -> Any:
    """JSON with today's wording of known sentences; everything else as it is.

    Args:
        value: Any value of a certificate.

    >>> in_current_wording({"says": "The result is a resting point.", "value": 1.0})
    {'says': 'The result is a stationary point.', 'value': 1.0}
    """
    if isinstance(value, str):
        return REWORDED.get(value, value)
    if isinstance(value, list):
        return [in_current_wording(item) for item in value]
    if isinstance(value, dict):
        return {name: in_current_wording(item) for name, item in value.items()}
    return value
