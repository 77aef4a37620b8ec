"""What a gate is, and the ways in which gates measure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from famr.audit.comparison import ComparedModels
from famr.audit.estimate import Estimate, Estimates, gap_estimate, mean_estimate
from famr.audit.measurements import ModelMeasurements
from famr.audit.per_image import PerImage, difference

NO_REFERENCE = "no retrained model was given"
ONE_REFERENCE = "comparing retrained models with each other takes two, and one was given"

Measure = Callable[[ComparedModels], Estimates]
"""All models of an audit → the gate's estimate of each."""
Compare = Callable[[ModelMeasurements, Sequence[ModelMeasurements], ComparedModels], Estimate]
"""A model, the reference models to compare it with, and the whole audit → the distance."""
MeasureOne = Callable[[ModelMeasurements, ComparedModels], Estimate | None]
"""A model and the whole audit → its estimate; None where it was not measured."""


def always(models: ComparedModels) -> bool:  # noqa: ARG001
    """For gates of every request.

    Args:
        models: Of the audit.
    """
    return True


def forgets_classes(models: ComparedModels) -> bool:
    """For gates of requests that forget whole classes.

    Args:
        models: Of the audit.
    """
    return models.splits.forgets_classes()


@dataclass(frozen=True)
class Gate:
    """One test of an audit. A model passes where the whole interval of its estimate is at most what is allowed.

    Allowed is the threshold; for a distance to reference models also the largest upper end among the reference models
    themselves, where that is more: no model has to be nearer to them than they are to each other.

    Attributes:
        name: In audit.json, in a file of thresholds and in `GATES`.
        title: A few words for readers of a report, of what makes the gate fail.
        description: What is measured, in one sentence; `says` in audit.json.
        threshold: The largest value that passes, fixed before any audit.
        measure: Estimates of all models; a gate without any estimate is left out of the audit.
        applies: Whether the gate makes sense for this request and these measurements.
        needs_retrained: Whether it compares with reference models, and so cannot tell without one.
    """

    name: str
    title: str
    description: str
    threshold: float
    measure: Measure
    applies: Callable[[ComparedModels], bool] = always
    needs_retrained: bool = True


def against_references(compare: Compare) -> Measure:
    """Distances to reference models; those of the reference models to each other are the scale.

    Args:
        compare: The distance.
    """

    def measure(models: ComparedModels) -> Estimates:
        references = models.references
        if not references:
            return Estimates({name: Estimate.not_available(NO_REFERENCE) for name in models.audited})
        by_model = {name: compare(model, references, models) for name, model in models.audited.items()}
        if len(references) < 2:
            return Estimates({**by_model, "retrained": Estimate.not_available(ONE_REFERENCE)})
        among = [compare(one, [other for other in references if other is not one], models) for one in references]
        return Estimates({**by_model, "retrained": among[0]}, among)

    return measure


def gap_to_references(values: PerImage) -> Measure:
    """|mean over images of (model − mean of the reference models)|.

    Args:
        values: The measure whose gap is taken.
    """
    return against_references(
        lambda model, references, models: gap_estimate(difference(model, references, values), models.seed)
    )


def excess_over_references(values: PerImage) -> Measure:
    """Mean over images of (model − mean of the reference models); below 0 is no fault.

    Args:
        values: The measure whose excess is taken.
    """
    return against_references(
        lambda model, references, models: mean_estimate(difference(model, references, values), models.seed)
    )


def each_model(measure_one: MeasureOne) -> Measure:
    """A quantity that takes no reference model; the first reference, where there is one, has to pass all the same.

    Args:
        measure_one: The quantity; models for which it is None are left out.
    """

    def measure(models: ComparedModels) -> Estimates:
        estimates = {name: measure_one(model, models) for name, model in models.named.items()}
        return Estimates({name: estimate for name, estimate in estimates.items() if estimate is not None})

    return measure
