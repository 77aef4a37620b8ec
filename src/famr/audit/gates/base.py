"""What a gate is, and the ways in which gates measure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from famr.audit.comparison import ComparedModels
from famr.audit.estimate import Estimate, Estimates, gap_estimate
from famr.audit.measurements import ModelMeasurements
from famr.audit.names import RETRAINED
from famr.audit.per_image import PerImage, difference
from famr.audit.prediction_bound import Gaps, ReferenceSpread, Shares

NO_REFERENCE = "no retrained model was given"
ONE_REFERENCE = "comparing retrained models with each other takes two, and one was given"

Kind = Literal["forgetting", "likeness", "depth", "utility", "conversion"]
"""What a gate is about, and so which control has to fail it before it counts.

forgetting   accuracy on the forget set and membership: the original
likeness     whether predictions are those of a model that was trained alike: the original. A never-saw model decides
             nothing here: trained for less long, it is unlike them whatever it saw
depth        what features and weights still hold: the original, and one such gate at least a head-only edit
utility      what the model is still good for: a model that predicts one class for everything
conversion   what rounding and export bring back: no model is known to fail; such a gate counts where it is failed
"""

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

    Allowed is the threshold: the largest difference that does not matter. For a distance to reference models it is the
    bound that one more retrained model would keep, where that is more.

    Attributes:
        name: In audit.json, in a file of thresholds and in `GATES`.
        title: A few words for readers of a report, of what makes the gate fail.
        description: What is measured, in one sentence; `says` in audit.json.
        threshold: The largest value that passes, fixed before any audit.
        measure: Estimates of all models; a gate without any estimate is left out of the audit.
        kind: What it is about, and so which control shows that it has power.
        applies: Whether the gate makes sense for this request and these measurements.
        needs_retrained: Whether it compares with reference models, and so cannot tell without one.
    """

    name: str
    title: str
    description: str
    threshold: float
    measure: Measure
    kind: Kind = "forgetting"
    applies: Callable[[ComparedModels], bool] = always
    needs_retrained: bool = True


SpreadOf = Callable[[Sequence[Estimate], ComparedModels], ReferenceSpread | None]
"""The estimates of the reference models against each other, and the whole audit → how they differ."""


def of_gaps(among: Sequence[Estimate], models: ComparedModels) -> ReferenceSpread:  # noqa: ARG001
    """The spread of values that are |model − mean of the reference models|, or a mean of such gaps.

    Args:
        among: The estimate of each reference model against the remaining ones.
        models: The whole audit.
    """
    return Gaps(tuple(estimate.value for estimate in among if estimate.value is not None))


def of_shares(values: PerImage) -> SpreadOf:
    """The spread of gaps of shares of images, most of which may be 0.

    Args:
        values: The measure whose gap is taken: 1 or 0 of each image, or a share over draws.
    """

    def spread(among: Sequence[Estimate], models: ComparedModels) -> ReferenceSpread:  # noqa: ARG001
        found = [values(reference) for reference in models.references]
        return Shares(tuple(float(each.double().mean()) for each in found), found[0].shape[-1])

    return spread


def against_references(compare: Compare, spread: SpreadOf | None = None) -> Measure:
    """Distances to reference models; those of each reference model to the remaining ones are the scale.

    Args:
        compare: The distance.
        spread: How to bound that of one more reference model; None: by the distances themselves.
    """

    def measure(models: ComparedModels) -> Estimates:
        references = models.references
        if not references:
            return Estimates({name: Estimate.not_available(NO_REFERENCE) for name in models.audited})
        by_model = {name: compare(model, references, models) for name, model in models.audited.items()}
        if len(references) < 2:
            return Estimates({**by_model, RETRAINED: Estimate.not_available(ONE_REFERENCE)})
        among = [compare(one, [other for other in references if other is not one], models) for one in references]
        return Estimates({**by_model, RETRAINED: worst(among)}, among, spread and spread(among, models))

    return measure


def worst(estimates: Sequence[Estimate]) -> Estimate:
    """The one with the largest value; one without a value only where none has any.

    Args:
        estimates: Of reference models.
    """
    return max(estimates, key=lambda estimate: -1.0 if estimate.value is None else estimate.value)


def gap_to_references(values: PerImage, spread: SpreadOf = of_gaps) -> Measure:
    """|mean over images of (model − mean of the reference models)|: more and less than theirs count alike.

    Args:
        values: The measure whose gap is taken.
        spread: How to bound that of one more reference model.
    """
    return against_references(
        lambda model, references, models: gap_estimate(difference(model, references, values), models.seed), spread
    )


def each_model(measure_one: MeasureOne) -> Measure:
    """A quantity that takes no reference model; the reference models have to pass all the same.

    Args:
        measure_one: The quantity; models for which it is None are left out.
    """

    def measure(models: ComparedModels) -> Estimates:
        estimates = {name: measure_one(model, models) for name, model in models.audited.items()}
        retrained = [each for model in models.references if (each := measure_one(model, models)) is not None]
        by_model = {name: estimate for name, estimate in estimates.items() if estimate is not None}
        return Estimates({**by_model, RETRAINED: worst(retrained)} if retrained else by_model)

    return measure
